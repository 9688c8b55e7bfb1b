"""Which weights a vLLM serves: the digest of the files that it loads, wherever on this machine they lie."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvist.app.connector_config import ConnectorConfig
from kvist.app.progress import Progress, Report
from kvist.app.weights import digest_of_files
from kvist.base.errors import ConfigError
from kvist.connectors.vllm.facts import Provenance
from kvist.connectors.vllm.reading_config import Engine

_log = logging.getLogger(__name__)

_SAFETENSORS, _ANY = (".safetensors",), (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_ENDINGS = {
    **dict.fromkeys(("auto", "hf", "bitsandbytes", "gguf"), _ANY),
    **dict.fromkeys(("safetensors", "fastsafetensors", "instanttensor", "mistral", "sharded_state"), _SAFETENSORS),
    **dict.fromkeys(("runai_streamer", "runai_streamer_sharded"), _SAFETENSORS),
    "npcache": (".bin",),
    "pt": (".pt",),
}
"""Of files that hold weights, by vLLM's load format; of several, the first that is there is loaded. Whoever loads by
another format has the weights from somewhere else."""

_BESIDE, _CODE = "*processor_config.json", "*.py"
"""What shapes KV beside the weights and the configuration: how media become tokens, and code that is allowed to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a model's files are.

    Attributes:
        model: a directory, a file, or the name of a model in the hub's cache.
        revision: of the hub's; None: the main one.
        download_dir: where the hub's client has put it; None: in its cache.
        load_format: as vLLM calls it.
    """

    model: str
    revision: str | None = None
    download_dir: str | None = None
    load_format: str = "auto"


def provenance_of(engine: Engine, config: ConnectorConfig, report: Report) -> Provenance:
    """Where the KV that an engine computes comes from, beside what is in its configuration.

    Args:
        engine: what vLLM says of itself.
        config: what the operator says.
        report: takes how far this has come.

    Raises:
        ConfigError: the weights are not here, and nobody has named them.
        ModelError: a file cannot be read.
    """
    setup, process = engine.setup, secrets.token_hex(16)
    draft, draft_weights, beside = setup.draft_model, "", ""
    if setup.load_format == "dummy":
        weights = process
        _log.warning("the weights are random, so what is stored is of use to this process alone")
    elif config.weights_revision is not None:
        weights = f"revision {config.weights_revision}"
    else:
        place = place_of(engine)
        weights = identified_weights(place, report)
        files = files_beside(place, runs_code=setup.runs_code)
        beside = digest_of_files(files).hex() if files else ""
        if draft is not None:
            other = Place(model=draft, revision=setup.draft_revision, download_dir=setup.download_dir)
            is_same = (other.model, other.revision) == (place.model, place.revision)
            draft_weights = weights if is_same else identified_weights(other, report)
    if engine.facts.computed_scales:
        _log.warning("scales of the KV come from what is served first: what is stored is of use to this process alone")
    return Provenance(
        weights=weights, draft_weights=draft_weights, beside=beside, epoch=config.weights_epoch, process=process
    )


def place_of(engine: Engine) -> Place:
    """Where the files of an engine's model are."""
    setup = engine.setup
    return Place(
        model=setup.model, revision=setup.revision, download_dir=setup.download_dir, load_format=setup.load_format
    )


def identified_weights(place: Place, report: Report) -> str:
    """BLAKE3 over names and contents of a model's weights; hexadecimal. Reads every byte.

    Args:
        place: where they are.
        report: takes how far this has come.

    Raises:
        ConfigError: they are not here.
        ModelError: a file cannot be read.
    """
    paths = weight_files(place)
    report(Progress(stage=f"Identifying the weights of {place.model}"))
    return digest_of_files(paths).hex()


def weight_files(place: Place) -> list[Path]:
    """The files that hold a model's weights, in order of name.

    Raises:
        ConfigError: there are none here, or others are loaded.
    """
    remedy = "name them with weights_revision in the file of kvist_config"
    endings = _ENDINGS.get(place.load_format)
    if endings is None:
        raise ConfigError(
            f"load_format {place.load_format!r} need not load the weights that lie in {place.model}, so nothing tells "
            f"them from others; {remedy}"
        )
    for ending in endings:
        if found := _files(place, f"*{ending}"):
            return found
    raise ConfigError(
        f"the weights of {place.model} are not on this machine's disk, so nothing tells them from others; {remedy}"
    )


def files_beside(place: Place, *, runs_code: bool) -> Sequence[Path]:
    """What lies beside a model's weights and takes part in its KV, in order of name.

    Args:
        place: of the model.
        runs_code: whether code that came with it may be used.
    """
    patterns = (_BESIDE, _CODE) if runs_code else (_BESIDE,)
    # Of a model of the hub only the weights are where vLLM was told to put them.
    root = _root(replace(place, download_dir=None))
    return (
        [] if root is None or root.is_file() else [each for pattern in patterns for each in sorted(root.glob(pattern))]
    )


def _files(place: Place, pattern: str) -> list[Path]:
    root = _root(place)
    if root is None:
        return []
    return [root] if root.is_file() else sorted(root.glob(pattern))


def _root(place: Place) -> Path | None:
    """The directory or the file that a model is; None: it is not here."""
    try:
        path = Path(place.model)
        return path if path.is_file() or (place.model and path.is_dir()) else _snapshot(place)
    except OSError:  # a name that no file could have
        return None


def _snapshot(place: Place) -> Path | None:
    """Where the hub's client has put a model; None: nowhere, or that client is not here."""
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  comes with vLLM, and with Kvist's own engine

        found = snapshot_download(
            place.model, revision=place.revision, cache_dir=place.download_dir, local_files_only=True
        )
        return Path(found)
    except (ImportError, OSError, ValueError):  # what that client raises for names and files that are not there
        return None
