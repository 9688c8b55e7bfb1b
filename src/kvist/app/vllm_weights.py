"""Which weights a vLLM serves: the digest of the files that it loads, wherever on this machine they lie."""

import logging
import secrets
from pathlib import Path

from kvist.app.connector_config import ConnectorConfig
from kvist.app.progress import Progress, Report
from kvist.app.weights import digest_of_files
from kvist.base.errors import ConfigError
from kvist.connectors.vllm.facts import Provenance
from kvist.connectors.vllm.reading_config import Engine

_log = logging.getLogger(__name__)

_KINDS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
"""Endings of files that hold weights; of several formats of one model, the first that is there is loaded."""


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
    draft, draft_weights = setup.draft_model, ""
    if setup.load_format == "dummy":
        weights = process
        _log.warning("the weights are random, so what is stored is of use to this process alone")
    elif config.weights_revision is not None:
        weights = f"revision {config.weights_revision}"
    else:
        weights = identified_weights(setup.model, setup.revision, report)
        if draft is not None:
            draft_weights = weights if draft == setup.model else identified_weights(draft, None, report)
    if engine.facts.computed_scales:
        _log.warning("scales of the KV come from what is served first: what is stored is of use to this process alone")
    return Provenance(weights=weights, draft_weights=draft_weights, epoch=config.weights_epoch, process=process)


def identified_weights(model: str, revision: str | None, report: Report) -> str:
    """BLAKE3 over names and contents of a model's weights; hexadecimal. Reads every byte.

    Args:
        model: a directory, a file, or the name of a model in the hub's cache.
        revision: of the hub's; None: the main one.
        report: takes how far this has come.

    Raises:
        ConfigError: they are not here.
        ModelError: a file cannot be read.
    """
    paths = weight_files(model, revision)
    report(Progress(stage=f"Identifying the weights of {model}"))
    return digest_of_files(paths).hex()


def weight_files(model: str, revision: str | None) -> list[Path]:
    """The files that hold a model's weights, in order of name.

    Raises:
        ConfigError: there are none here.
    """
    try:
        place = Path(model)
        if place.is_file():
            return [place]
        directory = place if model and place.is_dir() else _snapshot(model, revision)
    except OSError:  # a name that no file could have
        directory = None
    if directory is not None:
        for kind in _KINDS:
            if found := sorted(directory.glob(f"*{kind}")):
                return found
    raise ConfigError(
        f"the weights of {model} are not on this machine's disk, so nothing tells them from others; "
        "name them with weights_revision in the file of kvist_config"
    )


def _snapshot(model: str, revision: str | None) -> Path | None:
    """Where the hub's client has put a model; None: nowhere, or that client is not here."""
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  comes with vLLM, and with Kvist's own engine

        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (ImportError, OSError, ValueError):  # what that client raises for names and files that are not there
        return None
