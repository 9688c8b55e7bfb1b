"""Memory is touched ahead only where that refuses nothing that would not be refused without it."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvist.app.config import ServeConfig, read_config
from kvist.app.kv_memory import ReservedMemory, beside_weights, reserved_ahead
from kvist.app.memory import bytes_free
from kvist.base.units import Bytes

MIB = 2**20


def settings(**fields: object) -> ServeConfig:
    return read_config({"model": "any"} | fields)


@pytest.fixture
def reserved() -> ReservedMemory:
    found = reserved_ahead(settings(kv_memory="16MiB"))
    assert found is not None
    return found


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(bytes(MIB))
    (tmp_path / "other.bin").write_bytes(bytes(64 * MIB))
    return tmp_path


def test_as_much_as_was_asked_for_is_reserved(reserved: ReservedMemory) -> None:
    assert 16 * MIB <= reserved.memory.nbytes <= 17 * MIB
    assert reserved.free > 16 * MIB


@pytest.mark.parametrize("fields", [{"kv_memory_fraction": "0.5"}, {"device": "cuda"}])
def test_nothing_is_reserved_where_the_size_follows_from_what_is_free(fields: dict[str, object]) -> None:
    assert reserved_ahead(settings(**fields)) is None


def test_nothing_is_reserved_where_most_of_the_memory_was_asked_for() -> None:
    assert reserved_ahead(settings(kv_memory=str(bytes_free() * 3 // 4))) is None


def test_it_is_kept_where_there_is_room_for_the_weights(reserved: ReservedMemory, weights: Path) -> None:
    assert beside_weights(reserved, weights) is reserved.memory
    assert reserved.memory.take(16 * MIB) is not None


def test_it_is_given_back_where_weights_might_not_fit(reserved: ReservedMemory, weights: Path) -> None:
    room = reserved.memory.nbytes + 3 * MIB
    tight = replace(reserved, free=Bytes(room))
    assert beside_weights(tight, weights) is tight.memory
    short = replace(reserved, free=Bytes(room - 1))
    assert beside_weights(short, weights) is None
    assert reserved.memory.nbytes == 0


def test_where_nothing_was_reserved_there_is_nothing(weights: Path) -> None:
    assert beside_weights(None, weights) is None
