"""From what the user gave as `--model` to files that are proven whole. Downloads nothing.

a name of the catalogue      its directory in the cache, every file checked against its digest
a directory                  itself, if it holds what a model needs
a GGUF file                  its conversion in the cache, made on first use
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from kvist.app.cache_dir import cache_root
from kvist.app.catalogue import CATALOGUE, NamedModel
from kvist.app.conversion import Source, convert_into, require_engine
from kvist.app.manifest import Manifest
from kvist.app.model_store import ModelStore
from kvist.app.progress import Progress, Report, silent
from kvist.app.safetensors_check import check_weights
from kvist.base.errors import ModelError
from kvist.engine.backends.gguf_facts import bytes_to_convert, check_convertible
from kvist.engine.backends.gguf_header import read_header

_TOKENIZER_FILES = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
_READ_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model that can be loaded.

    Attributes:
        directory: holds config.json, safetensors and tokenizer.
        served_name: what the API calls it unless told otherwise.
        digest: of the names and contents of all files, for what comes of the cache; None for a directory of the
            user's own, whose weights are not read before they are loaded.
    """

    directory: Path
    served_name: str
    digest: str | None = None


def locate(name_or_path: str, *, progress: Report = silent) -> ModelFiles:
    """Finds a model and proves its files whole; converts a GGUF file the first time.

    Args:
        name_or_path: a name of the catalogue, a Hugging Face directory, or a GGUF file.
        progress: takes how far the work has come.

    Raises:
        ModelError: there is no such model, it is not fetched, or its files are damaged; says what can be done.
        ConfigError: the cache directory can not be used, or something is not installed.
        CapacityError: there is no room for the conversion of a GGUF file.
    """
    return locate_in(ModelStore(cache_root(os.environ)), name_or_path, progress=progress)


def locate_in(store: ModelStore, name_or_path: str, *, progress: Report = silent) -> ModelFiles:
    """Finds a model, converted ones in the given store; see `locate`."""
    if name_or_path in CATALOGUE:
        return _fetched(CATALOGUE[name_or_path], store, progress)
    path = Path(name_or_path).expanduser()
    try:
        if name_or_path and path.is_dir():
            return _local(path.resolve())
        if path.is_file():
            return _converted(path.resolve(), store, progress)
    except (OSError, ValueError) as error:
        raise ModelError(f"{name_or_path!a} can not be read: {error}") from error
    names = " or ".join(f"{model.name!r} ({model.summary})" for model in CATALOGUE.values())
    raise ModelError(
        f"there is no model {name_or_path!r}; give a name, {names}, or a directory with config.json, safetensors and "
        "tokenizer, or a .gguf file"
    )


def _fetched(model: NamedModel, store: ModelStore, progress: Report) -> ModelFiles:
    manifest = store.verify(model.gguf_sha256, remedy=f"run: kvist fetch {model.name}", report=progress)
    return ModelFiles(
        directory=store.directory(model.gguf_sha256), served_name=model.served_name, digest=manifest.digest
    )


def _local(directory: Path) -> ModelFiles:
    config = directory / "config.json"
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{directory} is no model: it has no config.json") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{config} is damaged: it should hold JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{config} is damaged: it should hold a JSON object")
    check_weights(directory)
    if not any(all((directory / name).is_file() for name in names) for names in _TOKENIZER_FILES):
        wanted = ", or ".join(" and ".join(names) for names in _TOKENIZER_FILES)
        raise ModelError(f"{directory} has no tokenizer; it needs {wanted}")
    return ModelFiles(directory=directory, served_name=directory.name)


def _converted(gguf: Path, store: ModelStore, report: Report) -> ModelFiles:
    header = read_header(gguf)
    check_convertible(header, gguf)
    source = Source(gguf=gguf, sha256=_sha256(gguf, report), name=gguf.name)
    manifest = store.find(source.sha256, report=report) or _convert(source, bytes_to_convert(header), store, report)
    return ModelFiles(directory=store.directory(source.sha256), served_name=gguf.stem, digest=manifest.digest)


def _convert(source: Source, wanted: int, store: ModelStore, report: Report) -> Manifest:
    require_engine()
    with store.lock(source.sha256, report=report):
        # Whoever held the lock until now may have done the work.
        if manifest := store.find(source.sha256):
            return manifest
        with store.workspace(source.sha256, wanted=wanted) as workspace:
            return convert_into(store, source, workspace, report)


def _sha256(path: Path, progress: Report) -> str:
    hasher, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            hasher.update(data)
            done += len(data)
            progress(Progress(stage=f"read {path.name}", done=done, total=total))
    return hasher.hexdigest()
