"""From a GGUF on disk to a model in the store: convert, compare with what is known, measure, keep."""

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from kvist.app.manifest import Manifest, record_files
from kvist.app.model_store import ModelStore
from kvist.app.progress import Progress, Report
from kvist.base.errors import ConfigError, ModelError
from kvist.engine.backends.gguf_facts import CONVERTED_DTYPE, CONVERTER_VERSION

_ENGINE_MODULES = ("torch", "transformers", "accelerate", "gguf", "safetensors", "tokenizers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A GGUF that is to become a model in the store.

    Attributes:
        gguf: the file.
        sha256: of its contents.
        name: what people call the file.
        terms_accepted: address of the terms that the user accepted; None when there are none.
        facts: values that the converted config.json must have; dotted names reach into nested objects.
    """

    gguf: Path
    sha256: str
    name: str
    terms_accepted: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)


def require_engine() -> None:
    """Refuses early when what converts models is not installed.

    Raises:
        ConfigError: names what is missing.
    """
    missing = [module for module in _ENGINE_MODULES if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} is not installed; run: python -m pip install 'kvist[engine]'")


def convert_into(store: ModelStore, source: Source, workspace: Path, report: Report) -> Manifest:
    """Converts a GGUF and puts the result in its place in the store.

    Args:
        store: where to; the caller holds its lock for this source.
        source: the GGUF.
        workspace: of the store, with room for the result.
        report: takes how far the work has come.

    Raises:
        ModelError: the file can not be converted, or the result contradicts what is known.
        OSError: there is no room.
    """
    # Late: loads torch, which a model that is converted already does not need.
    from kvist.engine.backends.gguf_convert import convert  # noqa: PLC0415

    report(Progress(stage=f"convert {source.name} to {CONVERTED_DTYPE}, once"))
    built = workspace / "built"
    convert(source.gguf, built)
    check_facts(source.facts, built / "config.json")
    manifest = Manifest(
        source_sha256=source.sha256,
        source_name=source.name,
        dtype=CONVERTED_DTYPE,
        converter=CONVERTER_VERSION,
        terms_accepted=source.terms_accepted,
        files=record_files(built),
    )
    store.commit(built, manifest)
    return manifest


def check_facts(facts: Mapping[str, object], config: Path) -> None:
    """Compares a converted configuration with what is known of the model.

    Raises:
        ModelError: they differ; names every value.
    """
    content = json.loads(config.read_text(encoding="utf-8"))
    wrong = [
        f"{name} is {found!r} instead of {known!r}"
        for name, known in facts.items()
        if (found := _at(content, name)) != known
    ]
    if wrong:
        raise ModelError(f"the conversion went wrong: {'; '.join(wrong)}")


def _at(content: object, name: str) -> object:
    """The value under a dotted name; None where there is none."""
    return reduce(lambda part, key: part.get(key) if isinstance(part, Mapping) else None, name.split("."), content)
