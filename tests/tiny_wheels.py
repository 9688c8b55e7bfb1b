"""Builds Python packages with files in them, and named models that are made of such packages."""

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from kvist.app.catalogue import NamedModel, Piece, Terms
from kvist.engine.backends.gguf_header import read_header

TERMS = "<html><nav>menu</nav><article><h1>Tiny Terms</h1><p>Be kind.</p></article></html>"
TERMS_URL = "https://example.com/terms"


def write_wheel(folder: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """Writes version 1.0 of a package that holds nothing but files."""
    stem = f"{name.replace('-', '_')}-1.0"
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tiny\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    listed = {**files, **{f"{stem}.dist-info/{key}": text.encode() for key, text in about.items()}}
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in listed.items():
            archive.writestr(member, data)
        archive.writestr(f"{stem}.dist-info/RECORD", "".join(f"{member},,\n" for member in listed))
    return path


def publish(folder: Path, gguf: Path, *, parts: int = 1, terms: bool = False) -> NamedModel:
    """Writes packages that hold a GGUF in so many parts, and returns the model that is made of them."""
    data = gguf.read_bytes()
    step = -(-len(data) // parts)
    pieces = []
    for index in range(parts):
        part = data[index * step : (index + 1) * step]
        write_wheel(folder, f"tiny-part{index}", {f"tiny/part{index}": part})
        pieces.append(Piece(requirement=f"tiny-part{index}==1.0", member=f"tiny/part{index}", size=len(part)))
    return NamedModel(
        name="tiny",
        served_name="Tiny-1K",
        summary="a tiny model",
        licence="Tiny Terms" if terms else "Apache-2.0",
        pieces=tuple(pieces),
        gguf_sha256=hashlib.sha256(data).hexdigest(),
        parameters=read_header(gguf).parameters,
        facts={"num_hidden_layers": 2, "rope_parameters.rope_theta": 10_000.0},
        terms=_publish_terms(folder) if terms else None,
    )


def _publish_terms(folder: Path) -> Terms:
    data = TERMS.encode()
    write_wheel(folder, "tiny-terms", {"tiny/terms.html": data})
    text = Piece(requirement="tiny-terms==1.0", member="tiny/terms.html", size=len(data))
    return Terms(title="Tiny Terms", url=TERMS_URL, text=text, sha256=hashlib.sha256(data).hexdigest())
