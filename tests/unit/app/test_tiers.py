"""Tiers as the operator asks for them: opened in order, closed in the end, or refused in words that name the tier."""

from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

import pytest

from fakes.tiers import BLUE, key_of
from kvist.app.clock import SystemClock
from kvist.app.tier_specs import DiskSpec, DramSpec, PoolSpec
from kvist.app.tiers import opened_tiers
from kvist.base.errors import ConfigError, KvistError, TierError
from kvist.fabric.book import Book
from kvist.fabric.claims import Claim, Reserved
from kvist.fabric.messages import Ticket, TierName
from kvist.tiers.regions import Regions
from real.redis import shared_server

MIB = 2**20
RECORDS = (368_640 + 512, 49_152 + 512)
DRAM = DramSpec(name="dram", bytes=16 * MIB)
Spec = DramSpec | DiskSpec | PoolSpec


def disk(path: Path, **fields: object) -> DiskSpec:
    return DiskSpec(**({"name": "disk", "path": str(path), "bytes": 64 * MIB, "free_min": MIB} | fields))


def pool(**fields: object) -> PoolSpec:
    return PoolSpec(**({"name": "pool", "url": f"redis://127.0.0.1:{shared_server().port}"} | fields))


def check_refused(spec: Spec, *words: str) -> None:
    """Opening it fails with one error in these words."""
    with pytest.raises(KvistError) as caught, opened_tiers([spec], RECORDS, Regions(), SystemClock()):
        pass
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_they_come_in_their_order_and_are_closed_in_the_end(tmp_path: Path) -> None:
    with opened_tiers([DRAM, disk(tmp_path / "d"), pool()], RECORDS, Regions(), SystemClock()) as tiers:
        assert list(tiers) == ["dram", "disk", "pool"]
        settings = [each.settings for each in tiers.values()]
        assert [each.kind for each in settings] == ["dram", "disk", "pool"]
        assert [each.limits is not None for each in settings] == [True, True, False], (
            "a shared pool keeps its own books"
        )
        assert [each.region is not None for each in settings] == [True, False, False], (
            "only memory is looked at in place"
        )
        assert all(each.tier.find([]) == [] for each in tiers.values())
    for each in tiers.values():
        with pytest.raises(TierError, match=each.tier.name):
            list(each.tier.entries())


def test_the_budget_is_the_operator_s_and_holds_the_longest_record(tmp_path: Path) -> None:
    specs = [DRAM, disk(tmp_path / "d", tenant_bytes=5 * MIB)]
    with opened_tiers(specs, RECORDS, Regions(), SystemClock()) as tiers:
        limits = [each.settings.limits for each in tiers.values()]
        for spec, found in zip(specs, limits, strict=True):
            assert found is not None
            assert 0 < found.bytes_max <= spec.bytes
            assert found.extent_bytes >= max(RECORDS)
            assert found.extent_bytes % found.alignment == 0
        assert [found.tenant_bytes_default for found in limits if found] == [None, 5 * MIB]


def test_a_small_memory_still_has_an_extent_for_each_kind_of_record() -> None:
    least = sum(2 * size for size in RECORDS)
    with opened_tiers([DramSpec(name="dram", bytes=least)], RECORDS, Regions(), SystemClock()) as tiers:
        limits = tiers[TierName("dram")].settings.limits
        assert limits is not None
        assert limits.bytes_max // limits.extent_bytes >= len(RECORDS)


def test_what_is_too_small_is_refused(tmp_path: Path) -> None:
    check_refused(DramSpec(name="dram", bytes=1000), "dram", "1000 B", "do not hold one block")
    check_refused(disk(tmp_path / "d", bytes=1000), str(tmp_path / "d"))
    check_refused(DramSpec(name="dram", bytes=2**60), "tier dram", "are free; ask for less")
    check_refused(disk(tmp_path / "d", bytes=2**59), str(tmp_path / "d"), "file system")


@pytest.mark.parametrize("quota", [1, max(RECORDS) - 1])
def test_a_quota_that_holds_no_block_is_refused(tmp_path: Path, quota: int) -> None:
    for spec in (DRAM.model_copy(update={"tenant_bytes": quota}), disk(tmp_path / "d", tenant_bytes=quota)):
        check_refused(spec, spec.name, "tenant_bytes", "do not hold one block")


@pytest.mark.parametrize("size", [MIB, 3 * MIB, 16 * MIB + 1, 40 * MIB])
@pytest.mark.parametrize("kind", ["dram", "disk"])
@pytest.mark.parametrize("records", [RECORDS, RECORDS[:1], (9 * MIB,), (9 * MIB, 600, 600)])
def test_a_tier_that_opens_stores_records_of_every_length(
    tmp_path: Path, kind: str, size: int, records: tuple[int, ...]
) -> None:
    spec = disk(tmp_path / "d", bytes=size) if kind == "disk" else DramSpec(name="dram", bytes=size)
    is_little = size < 2 * sum(records) + 2 * MIB
    with (
        suppress(ConfigError) if is_little else nullcontext(),  # what is plenty may not be refused
        opened_tiers([spec], records, Regions(), SystemClock()) as tiers,
    ):
        limits = tiers[TierName(kind)].settings.limits
        assert limits is not None
        book = Book(limits)
        for number, length in enumerate(records):
            claim = Claim(key=key_of(number), tenant=BLUE, record_bytes=length)
            assert isinstance(book.reserve(claim, Ticket(1), 0.0), Reserved)


def test_a_directory_whose_files_are_too_short_for_another_model_is_refused(tmp_path: Path) -> None:
    with opened_tiers([disk(tmp_path / "d")], [600], Regions(), SystemClock()):
        pass
    with (
        pytest.raises(ConfigError, match=r"no record of 20\.0 MiB fits; empty it"),
        opened_tiers([disk(tmp_path / "d")], [20 * MIB], Regions(), SystemClock()),
    ):
        pass


def test_a_directory_is_one_server_s(tmp_path: Path) -> None:
    with opened_tiers([disk(tmp_path / "d")], RECORDS, Regions(), SystemClock()):
        check_refused(disk(tmp_path / "d"), str(tmp_path / "d"))
    with opened_tiers([disk(tmp_path / "d")], RECORDS, Regions(), SystemClock()) as again:
        assert list(again) == ["disk"]


def test_a_tier_that_cannot_be_closes_those_before_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    specs = [disk(tmp_path / "d"), disk(tmp_path / "file", name="other")]
    with ExitStack() as stack, pytest.raises(ConfigError, match="file"):
        stack.enter_context(opened_tiers(specs, RECORDS, Regions(), SystemClock()))
    with opened_tiers([disk(tmp_path / "d")], RECORDS, Regions(), SystemClock()) as tiers:
        assert list(tiers) == ["disk"], "its lock is free again"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff", b"x" * 5000])
def test_a_password_file_that_holds_none_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    check_refused(pool(password_file=str(file)), "pool", str(file))


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    check_refused(pool(password_file=missing), missing)
    check_refused(pool(url="rediss://127.0.0.1:1", ca_file=missing), missing)
    check_refused(pool(url="redis://127.0.0.1:1", ca_file=missing), "rediss://")
