"""`kvist.fabric.match` against the definition of a hit, tried out length by length and block by block."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.base.units import Tokens
from kvist.fabric.match import Candidate, candidates, ends

BLOCKS_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What each source has: the indices of its blocks, by source and group."""

    block_tokens: int
    windows: tuple[Tokens | None, ...]
    present: tuple[tuple[frozenset[int], ...], ...]
    limit: int

    def flags(self) -> list[list[list[bool]]]:
        """As the functions want it; some sequences are shorter than the limit."""
        return [[[i in here for i in range(max(here, default=-1) + 1)] for here in groups] for groups in self.present]

    def needs(self, group: int, end: int) -> set[int]:
        """Blocks that a hit of `end` blocks needs of a group: those of the positions that a later query can see."""
        window, tokens = self.windows[group], end * self.block_tokens
        first = 0 if window is None else max(0, tokens - window)
        return {position // self.block_tokens for position in range(first, tokens)}

    def ends(self, sources: list[int]) -> list[int]:
        """Every length that some sources can serve together."""
        groups = range(len(self.windows))
        have = [frozenset().union(*(self.present[source][group] for source in sources)) for group in groups]
        return [end for end in range(self.limit + 1) if all(self.needs(g, end) <= have[g] for g in groups)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """G1 with a head, tiers with mostly everything or mostly nothing; windows of any size."""
    size = draw(st.integers(1, 5))
    windows = draw(st.lists(st.none() | st.integers(1, 5 * size).map(Tokens), min_size=1, max_size=3))
    some = st.frozensets(st.integers(0, BLOCKS_MAX - 1), max_size=3)
    most = some.map(lambda absent: frozenset(range(BLOCKS_MAX)) - absent)
    head = st.integers(0, BLOCKS_MAX).map(lambda end: frozenset(range(end)))
    source = st.tuples(*(some | most | head for _ in windows))
    return Case(
        block_tokens=size,
        windows=tuple(windows),
        present=tuple(draw(st.lists(source, min_size=1, max_size=4))),
        limit=draw(st.integers(0, BLOCKS_MAX)),
    )


def found_in(case: Case) -> tuple[Candidate, ...]:
    return candidates(case.flags(), case.windows, block_tokens=case.block_tokens, limit=case.limit)


def taken(candidate: Candidate, source: int, group: int) -> set[int]:
    """Blocks that a candidate takes from a source, by their bits."""
    return {index for index in range(BLOCKS_MAX) if candidate.takes[source][group] >> index & 1}


@settings(max_examples=examples(150))
@given(cases())
def test_ends_are_exactly_the_lengths_that_can_be_served(case: Case) -> None:
    for source, groups in enumerate(case.flags()):
        assert list(ends(groups, case.windows, block_tokens=case.block_tokens, limit=case.limit)) == case.ends([source])


@settings(max_examples=examples(150))
@given(cases())
def test_for_every_set_of_tiers_the_longest_prefix_is_offered(case: Case) -> None:
    offered = found_in(case)
    tiers = len(case.present) - 1
    for bits in range(2**tiers):
        chosen = [0, *(tier + 1 for tier in range(tiers) if bits >> tier & 1)]
        longest = max(case.ends(chosen))
        used = [{s for s, blocks in enumerate(each.blocks) if any(blocks)} for each in offered]
        assert any(each.end == longest and s <= set(chosen) for each, s in zip(offered, used, strict=True))


@settings(max_examples=examples(150))
@given(cases())
def test_a_candidate_takes_each_needed_block_once_from_the_first_source_that_has_it(case: Case) -> None:
    offered = found_in(case)
    sources, groups = range(len(case.present)), range(len(case.windows))
    assert [each.end for each in offered] == sorted(each.end for each in offered)
    assert len({each.takes for each in offered}) == len(offered)
    for candidate in offered:
        used = [s for s in sources if any(candidate.takes[s])]
        for group in groups:
            by_source = [taken(candidate, source, group) for source in sources]
            assert [len(each) for each in by_source] == [candidate.blocks[source][group] for source in sources]
            assert sorted(i for each in by_source for i in each) == sorted(case.needs(group, candidate.end))
            for source in used:
                assert by_source[source] <= case.present[source][group]
                earlier = [other for other in {0, *used} if other < source]
                assert not any(by_source[source] & case.present[other][group] for other in earlier)


@settings(max_examples=examples(150))
@given(cases())
def test_the_first_candidate_is_g1_alone_and_every_token_is_counted_once(case: Case) -> None:
    offered = found_in(case)
    assert offered[0].end == max(case.ends([0]))
    assert offered[0].wants(range(len(case.present))) == []
    for candidate in offered:
        assert sum(candidate.lengths) == candidate.end
        assert all(length >= 0 for length in candidate.lengths)


@settings(max_examples=examples(100))
@given(cases())
def test_wants_are_what_tiers_give_in_the_order_of_positions(case: Case) -> None:
    for candidate in found_in(case):
        wants = candidate.wants(range(len(case.present)))
        assert [index for _, index, _ in wants] == sorted(index for _, index, _ in wants)
        assert sorted(wants) == sorted(
            (group, index, source)
            for source in range(1, len(case.present))
            for group in range(len(case.windows))
            for index in taken(candidate, source, group)
        )
