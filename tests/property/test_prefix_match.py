"""`PrefixCache.match` against the definition of a hit, tried out from the longest length down."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.base.ids import BlockHash, BlockId, RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.blocks.keys import HashChain, namespace_of, tenant_key
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache

BLOCKS_MAX = 12
ONE, TWO = RequestId("one"), RequestId("two")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A cache and a sequence: windows by group, and by group the indices of the sequence's blocks that are there."""

    block_tokens: int
    windows: tuple[int | None, ...]
    present: tuple[frozenset[int], ...]
    held: frozenset[int]
    tokens: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Windows of less than a block, of several, of no whole number; mostly present blocks, so that hits are long."""
    size = draw(st.integers(1, 6))
    window = st.none() | st.integers(1, 4 * size)
    windows = draw(st.lists(window, min_size=1, max_size=3))
    absent = st.frozensets(st.integers(0, BLOCKS_MAX - 1), max_size=draw(st.sampled_from([1, 3, BLOCKS_MAX])))
    return Case(
        block_tokens=size,
        windows=tuple(windows),
        present=tuple(frozenset(range(BLOCKS_MAX)) - draw(absent) for _ in windows),
        held=draw(st.frozensets(st.integers(0, BLOCKS_MAX - 1))),
        tokens=draw(st.integers(1, BLOCKS_MAX * size)),
    )


def chain_of(case: Case, tenant: str = "blue") -> list[BlockHash]:
    """The hashes of the sequence's full blocks."""
    tokens = [TokenId(7)] * case.tokens
    return list(HashChain(tenant_key(b"", TenantId(tenant)), block_tokens=case.block_tokens).extend_to(tokens))


def cache_of(case: Case) -> PrefixCache:
    """A cache of what the case says, some of it held, among another tenant's blocks for the same tokens."""
    windows = [None if window is None else Tokens(window) for window in case.windows]
    pools = [BlockPool(2 * BLOCKS_MAX) for _ in windows]
    cache = PrefixCache(namespace_of({}), pools, windows, block_tokens=case.block_tokens)
    for pool, present in zip(pools, case.present, strict=True):
        for index, (ours, theirs) in enumerate(zip(chain_of(case), chain_of(case, "green"), strict=False)):
            for owner, block_hash in ((ONE, ours), (TWO, theirs)):
                if owner == TWO or index in present:
                    block = pool.seal(pool.allocate(owner), owner, block_hash)
                    if index not in case.held:
                        pool.release(block, owner)
    return cache


def serves(case: Case, group: int, blocks: int) -> bool:
    """Whether a group has what a hit of so many blocks needs: those covering [0, n), or [n - window, n)."""
    window, tokens = case.windows[group], blocks * case.block_tokens
    begin = 0 if window is None else max(0, tokens - window)
    return {position // case.block_tokens for position in range(begin, tokens)} <= case.present[group]


def longest(case: Case, groups: list[int]) -> int:
    """The longest hit that all of these groups serve, in blocks; one token at least is left out."""
    lengths = range((case.tokens - 1) // case.block_tokens, -1, -1)
    return next(blocks for blocks in lengths if all(serves(case, group, blocks) for group in groups))


def picture(cache: PrefixCache) -> list[object]:
    """What a look must not change: books, and the order of eviction."""
    return [
        (pool.statistics(), [pool.state(BlockId(block)) for block in range(len(pool))], list(pool._policy._order))
        for pool in cache.pools
    ]


@settings(max_examples=examples(500))
@given(cases())
def test_a_match_is_the_longest_hit_there_is(case: Case) -> None:
    cache, chain = cache_of(case), chain_of(case)
    before = picture(cache)
    hit = cache.match(chain, tokens=case.tokens)
    assert picture(cache) == before

    groups = list(range(len(case.windows)))
    blocks = longest(case, groups)
    assert hit.tokens == blocks * case.block_tokens
    assert hit.tokens < case.tokens
    assert hit.reached == longest(case, [g for g in groups if case.windows[g] is None]) * case.block_tokens
    for group in groups:
        window = case.windows[group]
        begin = 0 if window is None else max(0, hit.tokens - window) // case.block_tokens
        found = [cache.pools[group].find(each) for each in chain[:blocks]]
        assert list(hit.blocks[group]) == [None] * begin + found[begin:]
        assert None not in hit.blocks[group][begin:]


@settings(max_examples=examples(200))
@given(cases())
def test_a_chain_that_is_longer_or_shorter_than_the_tokens_matches_what_both_have(case: Case) -> None:
    cache, chain = cache_of(case), chain_of(case)
    for blocks in range(len(chain) + 1):
        by_chain = cache.match(chain[:blocks], tokens=case.tokens)
        by_tokens = cache.match(chain, tokens=min(case.tokens, blocks * case.block_tokens + 1))
        assert (by_chain.tokens, by_chain.blocks) == (by_tokens.tokens, by_tokens.blocks)


@settings(max_examples=examples(200))
@given(cases())
def test_more_in_the_cache_never_means_a_shorter_hit(case: Case) -> None:
    cache, chain = cache_of(case), chain_of(case)
    lengths = [cache.match(chain, tokens=case.tokens).tokens]
    for pool in cache.pools:
        for each in chain:
            if pool.find(each) is None:
                pool.release(pool.seal(pool.allocate(TWO), TWO, each), TWO)
                lengths.append(cache.match(chain, tokens=case.tokens).tokens)
    assert lengths == sorted(lengths)
    assert lengths[-1] == (case.tokens - 1) // case.block_tokens * case.block_tokens
