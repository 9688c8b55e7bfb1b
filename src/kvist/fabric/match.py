"""Which prefixes of a sequence could be served, and from where: the candidates among which the cost model chooses.

Knows positions, groups and sources by number; knows neither keys nor bytes nor seconds. Source 0 is G1, the others are
tiers, the one to prefer first. A set of blocks is one integer with a bit per block, so that 8,192 blocks are compared
by a few operations on long integers and never one by one.

    a hit of n tokens needs the blocks    of full attention: covering [0, n)    of a window: covering [n - window, n)

For a fixed set of tiers the longest prefix is the only one offered: in between, the total time is concave in the
length, so a shorter one cannot be the best (docs/explanation/load-or-recompute.md).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import itemgetter
from typing import TypeVar

from kvist.base.units import Tokens
from kvist.blocks.window import first_block_of_hit

Name = TypeVar("Name")

BlockSet = int
"""Bit i is set where block i (or, in a set of lengths, length i) is in the set."""

_DIGITS = bytes.maketrans(bytes(range(256)), b"0" + b"1" * 255)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One prefix that could be served, with the source of every block of it.

    Attributes:
        end: its length in blocks.
        blocks: how many blocks it takes, ``[sources][groups]``.
        lengths: how many of the `end` blocks of tokens count as coming from each source, ``[sources]``, each once:
            from the least preferred source that any group needs for them. Tokens that no group needs any more, in
            models that have windows only, count with the least preferred source that is used.
        takes: which blocks it takes, ``[sources][groups]``, as block sets.
    """

    end: int
    blocks: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    takes: tuple[tuple[BlockSet, ...], ...] = field(repr=False)

    def wants(self, names: Sequence[Name]) -> list[tuple[int, int, Name]]:
        """What must be loaded, as (group, index of the block, name of the source), in the order of positions."""
        wants: list[tuple[int, int, Name]] = []
        for name, groups in zip(names[1:], self.takes[1:], strict=True):
            for group, blocks in enumerate(groups):
                wants += zip(repeat(group), _indices(blocks), repeat(name))  # ends with the blocks; thousands, in C
        wants.sort(key=itemgetter(1))
        return wants


def candidates(
    sources: Sequence[Sequence[Sequence[int]]], windows: Sequence[Tokens | None], *, block_tokens: int, limit: int
) -> tuple[Candidate, ...]:
    """The prefixes worth comparing: for each set of tiers, with G1, the longest that all groups can serve.

    A block is taken from the first source that has it. Up to three tiers every set of them is tried; of more, the
    first so many, all but one, and each alone.

    Args:
        sources: 1 (or True) where a source has a block, ``[sources][groups][blocks]``, as lists or bytes; blocks
            beyond the end of a sequence are absent. The first source is G1.
        windows: of each group; None: it needs all positions.
        block_tokens: tokens per block.
        limit: longest prefix allowed, in blocks.

    Returns:
        In order of length, without repeats; the first is what G1 alone gives, and takes nothing from elsewhere.

    >>> [(each.end, each.blocks) for each in candidates([[[1, 0, 0]], [[1, 1, 0]]], [None], block_tokens=16, limit=3)]
    [(1, ((1,), (0,))), (2, ((1,), (1,)))]
    """
    have = [[_block_set(blocks, limit) for blocks in groups] for groups in sources]
    found: dict[tuple[tuple[BlockSet, ...], ...], Candidate] = {}
    for chosen in _sets_of_tiers(len(sources) - 1):
        used = [have[0], *(have[tier] if tier in chosen else [0] * len(windows) for tier in range(1, len(sources)))]
        candidate = _candidate(used, windows, block_tokens=block_tokens, limit=limit)
        found.setdefault(candidate.takes, candidate)
    return tuple(sorted(found.values(), key=lambda each: each.end))


def ends(
    available: Sequence[Sequence[int]], windows: Sequence[Tokens | None], *, block_tokens: int, limit: int
) -> tuple[int, ...]:
    """Every length in [0, limit], in blocks, of a prefix that all groups can serve, shortest first.

    Args:
        available: 1 (or True) where a block can be had, ``[groups][blocks]``.
        windows: of each group; None: it needs all positions.
        block_tokens: tokens per block.
        limit: longest prefix allowed, in blocks.

    >>> ends([[1, 1, 1, 1], [0, 0, 1, 1]], [None, 32], block_tokens=16, limit=4)
    (0, 4)
    """
    blocks = [_block_set(each, limit) for each in available]
    return tuple(_indices(_lengths(blocks, windows, block_tokens=block_tokens, limit=limit)))


def _sets_of_tiers(tiers: int) -> list[set[int]]:
    everything = range(1, tiers + 1)
    first = [set(range(1, tier)) for tier in range(1, tiers + 2)]  # none at first, all at last
    alone = [{tier} for tier in everything]
    without_one = [set(everything) - {tier} for tier in everything]
    sets: list[set[int]] = []
    for each in (*first, *alone, *without_one):
        if each not in sets:
            sets.append(each)
    return sets


def _candidate(
    have: Sequence[Sequence[BlockSet]], windows: Sequence[Tokens | None], *, block_tokens: int, limit: int
) -> Candidate:
    groups = range(len(windows))
    together = [_union(source[group] for source in have) for group in groups]
    lengths = _lengths(together, windows, block_tokens=block_tokens, limit=limit)
    end = lengths.bit_length() - 1
    needed = [
        _all(end) & ~_all(first_block_of_hit(end * block_tokens, window, block_tokens)) for window in windows
    ]  # what no source has served yet
    takes = []
    for source in have:
        taken = tuple(source[group] & needed[group] for group in groups)
        needed = [needed[group] & ~taken[group] for group in groups]
        takes.append(taken)
    return Candidate(
        end=end,
        blocks=tuple(tuple(each.bit_count() for each in taken) for taken in takes),
        lengths=_each_once([_union(taken) for taken in takes], end),
        takes=tuple(takes),
    )


def _each_once(takes: Sequence[BlockSet], end: int) -> tuple[int, ...]:
    counted, lengths = 0, [0] * len(takes)
    for source in reversed(range(len(takes))):
        lengths[source] = (takes[source] & ~counted).bit_count()
        counted |= takes[source]
    least_preferred = max((source for source, taken in enumerate(takes) if taken), default=0)
    lengths[least_preferred] += end - counted.bit_count()
    return tuple(lengths)


def _lengths(
    blocks: Sequence[BlockSet], windows: Sequence[Tokens | None], *, block_tokens: int, limit: int
) -> BlockSet:
    """The lengths that all groups can serve; 0 is always one."""
    lengths = _all(limit + 1)
    for have, window in zip(blocks, windows, strict=True):
        wanted = limit if window is None else -(-window // block_tokens)
        lengths &= _all(_first_run(have, limit) + 1) if wanted >= limit else _ends_of_runs(have, wanted)
    return lengths


def _first_run(blocks: BlockSet, limit: int) -> int:
    """How many blocks from the first one on are there."""
    missing = _all(limit) & ~blocks
    return (missing & -missing).bit_length() - 1 if missing else limit


def _ends_of_runs(blocks: BlockSet, wanted: int) -> BlockSet:
    """Where a run of `wanted` present blocks ends; blocks before the first one count as present.

    `runs` has a block where a run of `done` blocks begins; two runs, the second where the first ends, are one of twice
    the length, so a window of thousands of blocks takes a dozen operations.
    """
    runs = blocks << wanted | _all(wanted)
    done = 1
    while done < wanted:
        step = min(done, wanted - done)
        runs &= runs >> step
        done += step
    return runs


def _block_set(blocks: Sequence[int], limit: int) -> BlockSet:
    digits = bytes(blocks[:limit]).translate(_DIGITS)[::-1]  # a list as a whole is read much faster than its items
    return int(digits, 2) if digits else 0


def _all(blocks: int) -> BlockSet:
    return (1 << blocks) - 1


def _union(sets: Iterable[BlockSet]) -> BlockSet:
    union = 0
    for each in sets:
        union |= each
    return union


def _indices(blocks: BlockSet) -> list[int]:
    return [index for index, digit in enumerate(bin(blocks)[:1:-1]) if digit == "1"]
