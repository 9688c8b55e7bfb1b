"""What lies below an engine is opened whole, whichever engine it is, found by its other processes, and closed whole."""

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.fabric import BLUE, NAMESPACE, chain_of, form_of
from kvist.app.fabric import OpenFabric, Stored, opened_fabric, share_interpreter
from kvist.app.progress import silent
from kvist.app.tier_config import TierConfig
from kvist.app.tier_specs import DiskSpec, DramSpec
from kvist.base.errors import ConfigError
from kvist.base.ids import GroupId
from kvist.base.units import Tokens
from kvist.cost.prefill import Work, prefill_model
from kvist.fabric.messages import Offer, Query, Room
from kvist.tiers.regions import Region

CHAIN = chain_of("a", 3)
STORED = Stored(
    namespace=NAMESPACE,
    block_tokens=Tokens(16),
    windows=(None,),
    forms=(form_of(4096),),
    prefill=prefill_model(Work(parameters=10**9, attention_width=4096), step_tokens=Tokens(512)),
)


def config_of(folder: Path, **fields: object) -> TierConfig:
    tiers = (
        DramSpec(name="dram", bytes=2**20),
        DiskSpec(name="disk", path=str(folder / "disk"), bytes=64 * 2**20, free_min=1),
    )
    return TierConfig.model_validate({"tiers": tiers, "staging_memory": 2**20, "load_when": "always", **fields})


def store(opened: OpenFabric) -> None:
    for index, block_hash in enumerate(CHAIN):
        room = opened.fabric.offer(Offer(tenant=BLUE, group=GroupId(0), hash=block_hash, index=index))
        assert isinstance(room, Room)
        view = opened.regions.view(room.buffer)
        view[:] = bytes([index + 1]) * view.nbytes
        opened.fabric.store([room])


def loaded(opened: OpenFabric) -> list[bytes]:
    """The first byte of each block that comes back, in order."""
    fabric, found = opened.fabric, {}
    ticket = fabric.begin(Query(tenant=BLUE, chain=CHAIN, tokens=Tokens(3 * 16 + 1)))
    fabric.load(ticket, fabric.plan(ticket, [[]]))
    while fabric.state(ticket) == "loading":
        pieces = fabric.landed(ticket)
        found.update({piece.want.index: bytes(opened.regions.view(piece.buffer)[:1]) for piece in pieces})
        fabric.taken(ticket, pieces)
        fabric.wait(1.0)
    fabric.drop(ticket)
    return [found[index] for index in sorted(found)]


def test_what_was_stored_is_there_when_it_is_opened_again_under_the_same_name_only(tmp_path: Path) -> None:
    with opened_fabric(config_of(tmp_path), STORED, silent) as opened:
        assert loaded(opened) == []
        store(opened)
    with opened_fabric(config_of(tmp_path), STORED, silent) as opened:
        assert loaded(opened) == [b"\1", b"\2", b"\3"]
    other = replace(STORED, namespace=type(NAMESPACE)(b"o" * 32))
    with opened_fabric(config_of(tmp_path), other, silent) as opened:
        assert loaded(opened) == []


def test_another_process_finds_staging_and_every_tier_that_lends(tmp_path: Path) -> None:
    with opened_fabric(config_of(tmp_path), STORED, silent) as opened:
        handles = opened.handles()
        assert [(each.region, each.size, each.pid) for each in handles] == [
            ("staging", 2**20, os.getpid()),
            ("tier-dram", 2**20, os.getpid()),
        ]
        room = opened.fabric.offer(Offer(tenant=BLUE, group=GroupId(0), hash=CHAIN[0], index=0))
        assert isinstance(room, Room)
        elsewhere = Region.attached(handles[0], writable=True)
        elsewhere.view(room.buffer.offset, room.buffer.length)[:] = b"\5" * room.buffer.length
        elsewhere.close()
        opened.fabric.store([room])
        while opened.fabric.statistics().stores_running:
            opened.fabric.wait(1.0)
        assert loaded(opened) == [b"\5"]


def test_nothing_is_left_running_or_open(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    def running() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread not in before}

    with opened_fabric(config_of(tmp_path), STORED, silent) as opened:
        store(opened)
        assert running()
        regions = opened.regions
    assert not running()
    with pytest.raises(AssertionError, match="is closed"):
        regions.handles()


def test_staging_that_holds_too_little_is_refused_in_the_words_of_flags_and_of_files(tmp_path: Path) -> None:
    large = replace(STORED, forms=(form_of(2**20),))
    with (
        pytest.raises(ConfigError, match=r"staging memory of 1.0 MiB is too little .*--staging-memory, or staging_m"),
        opened_fabric(config_of(tmp_path), large, silent),
    ):
        pass


def test_staging_that_nobody_decided_is_our_own_mistake(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="nobody has decided"),
        opened_fabric(config_of(tmp_path, staging_memory=None), STORED, silent),
    ):
        pass


@pytest.mark.parametrize(("before", "after"), [(0.005, 0.0005), (0.0001, 0.0001)])
def test_the_interpreters_lock_is_passed_on_sooner_and_never_later(before: float, after: float) -> None:
    usual = sys.getswitchinterval()
    try:
        sys.setswitchinterval(before)
        share_interpreter()
        assert sys.getswitchinterval() == pytest.approx(after, abs=2e-6)  # kept in whole microseconds
    finally:
        sys.setswitchinterval(usual)
