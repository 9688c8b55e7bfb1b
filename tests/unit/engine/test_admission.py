import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.shape import groups_of, request_of
from kvist.base.ids import RequestId, TokenId
from kvist.base.units import Tokens
from kvist.blocks.keys import HashChain, namespace_of, tenant_key, tenant_tag
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.blocks.table import BlockTable
from kvist.blocks.window import Retention
from kvist.engine.admission import AdmissionRules, Deferred, may_start
from kvist.engine.sequence import Sequence

SIZE, STEP = 4, 8


class Pools:
    """Pools with sequences on them, of which each computes its whole prompt when it is made to run."""

    def __init__(self, blocks: int, *windows: int | None, overcommit: float = 1.0) -> None:
        self.rules = AdmissionRules(
            groups=groups_of(windows), block_tokens=SIZE, step_tokens=STEP, overcommit=overcommit
        )
        sizes = [group.window for group in self.rules.groups]
        self.cache = PrefixCache(namespace_of({}), [BlockPool(blocks) for _ in windows], sizes, block_tokens=SIZE)
        self.running: list[Sequence] = []

    def sequence(self, name: str, prompt: int, output: int, *, token: int = 0) -> Sequence:
        request = request_of(name, (token,) * prompt, output=output)
        key = tenant_key(b"", request.tenant)
        chain = HashChain(key, block_tokens=SIZE)
        return Sequence(request, chain, BlockTable(self.cache, RequestId(name), Retention()), tenant_tag(key))

    def ask(self, candidate: Sequence) -> Deferred | None:
        """Whether a candidate may start from what is cached now."""
        hit = self.cache.match(candidate.chain.extend_to(candidate.tokens), tokens=len(candidate.tokens))
        return may_start(self.rules, self.cache.pools, self.running, candidate, hit)

    def run(self, sequence: Sequence) -> Sequence:
        """Starts a sequence and computes its prompt, step by step."""
        hit = self.cache.match(sequence.chain.extend_to(sequence.tokens), tokens=len(sequence.tokens))
        sequence.take(hit, len(self.running))
        sequence.begin(hit)
        self.running.append(sequence)
        while sequence.computed < len(sequence.tokens):
            count = min(STEP, sequence.remaining)
            sequence.table.grow(sequence.computed + count)
            sequence.advance(count, SIZE)
        return sequence

    def end(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.stop()


def test_a_request_that_just_fits_may_start_and_one_token_more_may_not() -> None:
    pools = Pools(5, None)
    # The KV of the last token is never computed: 8 + 13 - 1 tokens take 5 blocks.
    assert pools.ask(pools.sequence("a", 8, 13)) is None
    assert pools.ask(pools.sequence("b", 8, 14)) == Deferred(
        reason="needs 6 blocks of KV group 0, 5 are not spoken for"
    )


def test_what_the_running_may_still_need_is_spoken_for() -> None:
    pools = Pools(10, None)
    pools.run(pools.sequence("a", 8, 13))
    assert pools.running[0].table.held_counts() == [2]
    assert pools.ask(pools.sequence("b", 8, 13, token=1)) is None
    refused = pools.ask(pools.sequence("c", 8, 14, token=1))
    assert refused == Deferred(reason="needs 6 blocks of KV group 0, 5 are not spoken for")


def test_blocks_that_are_cached_count_once_as_free_or_as_the_hit() -> None:
    """Taking a hit makes cached blocks unavailable: what it saves in need, it costs in room."""
    pools = Pools(5, None)
    pools.end(pools.run(pools.sequence("a", 9, 1)))
    assert pools.cache.pools[0].statistics().cached == 2
    assert pools.ask(pools.sequence("b", 9, 12)) is None
    assert pools.ask(pools.sequence("c", 9, 13)) == Deferred(
        reason="needs 4 blocks of KV group 0, 3 are not spoken for"
    )


def test_blocks_that_others_hold_are_a_saving_where_there_is_no_window() -> None:
    pools = Pools(6, None)
    pools.run(pools.sequence("a", 9, 1))
    assert pools.ask(pools.sequence("b", 9, 1, token=1)) is None
    assert pools.ask(pools.sequence("c", 9, 13, token=1)) is not None
    assert pools.ask(pools.sequence("d", 9, 12)) is None


def test_a_window_is_counted_in_full_for_each() -> None:
    """Two who share a window's blocks part later: then each needs its own."""
    pools = Pools(10, 8)
    (peak,) = pools.rules.peak(1000, STEP)
    assert peak == 5
    pools.run(pools.sequence("a", 100, 100))
    assert pools.ask(pools.sequence("b", 101, 100)) is None
    pools.run(pools.sequence("b", 101, 100))
    assert pools.cache.pools[0].available > peak
    assert pools.ask(pools.sequence("c", 101, 100)) == Deferred(
        reason="needs 5 blocks of KV group 0, 4 are not spoken for"
    )
    assert pools.ask(pools.sequence("d", 3, 2)) is None


def test_every_group_has_to_have_room() -> None:
    pools = Pools(6, 8, None)
    assert pools.ask(pools.sequence("a", 20, 5)) is None
    refused = pools.ask(pools.sequence("b", 20, 6))
    assert refused == Deferred(reason="needs 7 blocks of KV group 1, 6 are not spoken for")


@pytest.mark.parametrize(("overcommit", "expected"), [(1.0, 40), (1.5, 34), (3.0, 27), (20.0, 21), (1e9, 21)])
def test_overcommit_counts_on_a_part_of_the_output(overcommit: float, expected: int) -> None:
    pools = Pools(9, None, overcommit=overcommit)
    assert pools.rules.tokens_expected(pools.sequence("a", 20, 21)) == expected


def test_what_is_drawn_already_is_no_longer_a_matter_of_expectation() -> None:
    pools = Pools(9, None, overcommit=4.0)
    sequence = pools.sequence("a", 20, 21)
    expected = []
    for _ in range(21):
        expected.append(pools.rules.tokens_expected(sequence))
        sequence.tokens.append(TokenId(0))
    assert expected == sorted(expected)
    assert (expected[0], expected[-1]) == (25, 40)
    assert pools.rules.tokens_expected(sequence) == 41  # one that ends with this step


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.sampled_from([(None,), (5,), (None, 3)]))
def test_alone_a_request_starts_exactly_when_its_peak_fits(
    prompt: int, output: int, blocks: int, windows: tuple[int | None, ...]
) -> None:
    pools = Pools(blocks, *windows)
    fits = max(pools.rules.peak(prompt + output - 1, min(STEP, prompt))) <= blocks
    assert (pools.ask(pools.sequence("a", prompt, output)) is None) == fits


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 1)), max_size=6), st.integers(5, 40))
def test_who_is_let_in_never_finds_a_pool_empty(requests: list[tuple[int, int, int]], blocks: int) -> None:
    """Everybody who may start does, and then grows to the bound, one after the other."""
    pools = Pools(blocks, None)
    for number, (prompt, output, token) in enumerate(requests):
        candidate = pools.sequence(f"{number}", prompt, output, token=token)
        if pools.ask(candidate) is None:
            pools.run(candidate)
            claims = [pools.rules.claims(each, each.table.held_counts())[0] for each in pools.running]
            assert sum(claims) <= pools.cache.pools[0].available
    for sequence in pools.running:
        assert sequence.table.can_grow(sequence.tokens_bound)
        sequence.table.grow(sequence.tokens_bound)


def test_rules_are_what_they_say() -> None:
    rules = AdmissionRules(groups=groups_of((None, 8)), block_tokens=SIZE, step_tokens=STEP, overcommit=1.0)
    assert rules.peak(Tokens(1000), STEP) == [250, 5]
    assert rules.peak(Tokens(1000), 1) == [250, 3]
    assert rules.peak(1, STEP) == [1, 1]


def test_one_that_decodes_claims_less_of_a_window_than_one_that_prefills() -> None:
    pools = Pools(100, 8)
    prefills, decodes = pools.sequence("a", 100, 100), pools.sequence("b", 100, 100)
    decodes.computed = 99
    assert pools.rules.claims(prefills, [0]) == [5]
    assert pools.rules.claims(decodes, [0]) == [3]
