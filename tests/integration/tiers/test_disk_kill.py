"""`kill -9` while a disk tier is written, 200 times: what was acknowledged is there, and nothing is torn."""

import multiprocessing
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from fakes.dice import Dice
from kvist.blocks.form import check_record
from kvist.tiers.ports import Found, Read
from real.disk_writer import (
    BYTES_MAX,
    PLACE_BYTES,
    TENANT,
    Kept,
    State,
    Step,
    address_of,
    apply,
    open_tier,
    record_of,
    steps,
    work,
)

ROUNDS = 200
ENDED_MAX = 12
COUNTED_MAX = 30_000


def killed(directory: Path, seed: int, state: State, dice: Dice) -> int:
    """Lets a process work and kills it at some moment; how many steps it has acknowledged."""
    context = multiprocessing.get_context("forkserver")
    heard, told = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(directory, seed, list(state.values()), told))
    process.start()
    told.close()
    ended = 0
    with heard, suppress(EOFError):
        for _ in range(dice.number(0, ENDED_MAX)):
            heard.recv_bytes()
            ended += 1
        for _ in range(dice.number(0, COUNTED_MAX)):  # some time passes: it may be anywhere within a step
            pass
        process.kill()
        while True:
            heard.recv_bytes()
            ended += 1
    process.join()
    assert process.exitcode == -9, "it ended by itself"
    process.close()
    return ended


def allowed(state: State, step: Step) -> dict[int, set[Kept | None]]:
    """What there may be under each key if a process died during a step: what was, what will be, or nothing."""
    after = apply(state, step)
    touched = {number for number in state | after if state.get(number) != after.get(number)}
    return {number: {state.get(number), after.get(number), None} for number in touched}


def found(directory: Path, known: Sequence[Kept]) -> dict[int, Kept]:
    """Opens the tier anew: every record that it lists is whole, is one of those known, and all adds up."""
    tier = open_tier(directory)
    by_bytes = {bytes(record_of(kept)): kept for kept in known}
    entries = list(tier.entries())
    reads = [Read(address=each.address, into=memoryview(bytearray(each.record_bytes))) for each in entries]
    assert list(tier.read(reads)) == [Found()] * len(entries)
    state: dict[int, Kept] = {}
    for entry, read in zip(entries, reads, strict=True):
        check_record(read.into, key=entry.address.key, tenant=TENANT)
        assert bytes(read.into) in by_bytes, f"{entry} is of a version that cannot be there"
        kept = by_bytes[bytes(read.into)]
        assert entry.address == address_of(kept), f"{kept} lies elsewhere"
        state[kept.number] = kept
    statistics = tier.statistics()
    assert (statistics.records, statistics.bytes_used) == (len(entries), len(entries) * PLACE_BYTES)
    assert (statistics.records_lost, statistics.indexes_lost) == (0, 0)
    tier.close()
    return state


def disk_bytes(directory: Path) -> int:
    """What the directory takes, as `du` counts."""
    return sum(path.stat().st_blocks * 512 for path in (directory, *directory.iterdir()))


@pytest.mark.slow
def test_no_acknowledged_record_is_lost_and_none_is_torn(tmp_path: Path) -> None:
    multiprocessing.get_context("forkserver").set_forkserver_preload(["real.disk_writer"])
    directory, dice, state = tmp_path / "tier", Dice(1), dict[int, Kept]()
    seen: Counter[str] = Counter()
    for turn in range(ROUNDS):
        ended = killed(directory, turn, state, dice)
        assert disk_bytes(directory) <= BYTES_MAX
        work = list(islice(steps(turn, state), ended + 1))
        for step in work[:-1]:
            state = apply(state, step)
        last = allowed(state, work[-1])
        now = found(directory, [*state.values(), *work[-1].write])
        for number in state | now:
            assert now.get(number) in last.get(number, {state.get(number)}), f"round {turn}: key {number}"
        seen["steps"] += ended
        seen["half-way"] += now not in (state, apply(state, work[-1]))
        seen["ended, not told"] += now == apply(state, work[-1]) != state
        seen["records"] += len(now)
        state = now
    assert seen["steps"] > 3 * ROUNDS
    assert seen["records"] > 5 * ROUNDS, "hardly anything was there to be lost"
    assert seen["half-way"] > 0, f"never killed within a step: {seen}"
