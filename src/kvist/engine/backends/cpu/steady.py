"""A KV group's plan from step to step: made anew where something changed, carried on while sequences just decode.

In a steady decode each sequence becomes a token longer and now and then a block: then only the end of its last segment
moves, and with a window what its row no longer sees. To make a plan takes some seventy calls of numpy, whatever the
number of sequences; to carry one on takes a quarter of them.
"""

from dataclasses import dataclass, replace

import numpy as np

from kvist.engine.backends.cpu.segments import Integers, Plan, Reading, plan, runs

CARRIED_TOKENS = 64
"""So many tokens after a plan was made comes another: the work of its segments is no longer equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A plan for sequences of one row each, and what is to be known of it later.

    Attributes:
        offsets, firsts, starts, row: of the reading that it was made for, in memory of their own: a batch's columns may
            be written again.
        plan: as it was made.
        last: [sequences], the pair of each sequence's row with the last segment that it sees.
        segment: [sequences], that segment; its blocks from the sequence's `begin` on.
        begin: [sequences], in live blocks.
        base: [pairs], the position at which each pair's segment begins in the row's sequence.
        sequence: [pairs], whose row it is.
        same: two arrays of places in `tables` that have to hold equal blocks: those of readers and those that are read.
    """

    offsets: Integers
    firsts: Integers
    starts: Integers
    row: Integers
    plan: Plan
    last: Integers
    segment: Integers
    begin: Integers
    base: Integers
    sequence: Integers
    same: tuple[Integers, Integers]


class SteadyPlan:
    """The plans of one KV group, a step after the other.

    Attributes:
        made: how many were made anew.
    """

    def __init__(self, *, block_tokens: int, window: int | None) -> None:
        """Has none yet; the arguments are those of `kvist.engine.backends.cpu.segments.plan`."""
        self._block_tokens = block_tokens
        self._window = window
        self._kept: _Made | None = None
        self.made = 0

    def of(self, reading: Reading) -> Plan:
        """The plan of a step, for the same rows and positions as `plan` makes it; no array of it is changed later."""
        kept = self._kept
        if kept is not None and _goes_on(reading, kept):
            return self._carried(reading, kept)
        self.made += 1
        found = plan(reading, block_tokens=self._block_tokens, window=self._window)
        self._kept = _made(reading, found, self._block_tokens) if (reading.rows == 1).all() else None
        return found

    def _carried(self, reading: Reading, made: _Made) -> Plan:
        size = self._block_tokens
        segments, pairs, ends = made.plan.segments.copy(), made.plan.pairs.copy(), reading.starts + 1
        segments[made.segment, 1] = -(-ends // size) - reading.firsts - made.begin
        pairs[made.last, 2] = ends - made.base[made.last]
        if self._window is not None:
            pairs[:, 1] = np.maximum(ends[made.sequence] - self._window - made.base, 0)
        return replace(made.plan, tables=reading.tables, segments=segments, pairs=pairs)


def _goes_on(reading: Reading, made: _Made) -> bool:
    """Whether the same sequences, in the same places, are a few tokens further, one row each."""
    if len(reading.row) != len(made.row):
        return False
    further, (readers, read) = reading.starts - made.starts, made.same
    return bool(
        further.min() >= 0
        and further.max() < CARRIED_TOKENS
        and (reading.offsets == made.offsets).all()
        and (reading.firsts == made.firsts).all()
        and (reading.row == made.row).all()
        and (reading.rows == 1).all()
        and (reading.tables[readers] == reading.tables[read]).all()
    )


def _made(reading: Reading, found: Plan, block_tokens: int) -> _Made:
    """Looks at a plan in which sequences have one row each; what each has to itself comes after what it shares."""
    segments, pairs = found.segments, found.pairs
    count = len(reading.row)
    of_row = np.zeros(int(reading.row.max()) + 1, np.int64)
    of_row[reading.row] = np.arange(count)
    sequence = of_row[pairs[:, 0]]
    last = np.zeros(count, np.int64)
    last[sequence] = np.arange(len(pairs))  # of several the last one stays
    of_pair = np.repeat(np.arange(len(segments)), segments[:, 3])
    lead = sequence[segments[:, 2]]
    begin = segments[:, 0] - reading.offsets[lead]
    shared = np.flatnonzero(segments[of_pair, 3] > 1)
    which = of_pair[shared]
    blocks = segments[which, 1]
    same = (runs(reading.offsets[sequence[shared]] + begin[which], blocks), runs(segments[which, 0], blocks))
    return _Made(
        offsets=reading.offsets.copy(),
        firsts=reading.firsts.copy(),
        starts=reading.starts.copy(),
        row=reading.row.copy(),
        plan=found,
        last=last,
        segment=of_pair[last],
        begin=begin[of_pair[last]],
        base=(begin[of_pair] + reading.firsts[sequence]) * block_tokens,
        sequence=sequence,
        same=same,
    )
