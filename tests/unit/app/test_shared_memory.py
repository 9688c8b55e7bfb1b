"""Memory that is not there is refused in words, before anything is taken."""

from pathlib import Path

import pytest

from kvist.app.memory import bytes_free
from kvist.app.shared_memory import shared_region
from kvist.base.errors import CapacityError

MIB = 2**20


def test_what_is_free_can_be_had_to_the_last_byte() -> None:
    region = shared_region("mine", MIB, "--some-memory", lambda: MIB)
    assert (region.id, region.size) == ("mine", MIB)
    region.close()


def test_one_byte_more_is_refused_and_the_setting_named() -> None:
    with pytest.raises(CapacityError, match=r"^--some-memory: 1\.0 MiB of memory .* 1\.0 MiB are free; ask for less$"):
        shared_region("mine", MIB, "--some-memory", lambda: MIB - 1)


def test_a_control_group_s_bound_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(str(MIB))
    (tmp_path / "memory.current").write_text("0")
    (tmp_path / "membership").write_text("0::/\n")
    with pytest.raises(CapacityError, match="are free"):
        shared_region("mine", 2 * MIB, "--some-memory", lambda: bytes_free(tmp_path, tmp_path / "membership"))


def test_the_host_s_own_memory_is_the_bound_where_nothing_else_is_said() -> None:
    with pytest.raises(CapacityError, match="are free"):
        shared_region("mine", 2**60, "--some-memory")
