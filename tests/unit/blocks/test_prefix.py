import re

import pytest

from kvist.base.ids import BlockHash, RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.blocks.keys import HashChain, namespace_of, tenant_key
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache

OWNER = RequestId("owner")
SIZE = 4


def cache_of(*windows: int | None, name: str = "one") -> PrefixCache:
    pools = [BlockPool(16) for _ in windows]
    sizes = [None if window is None else Tokens(window) for window in windows]
    return PrefixCache(namespace_of({"model": name}), pools, sizes, block_tokens=SIZE)


def chain_of(blocks: int, tenant: str = "blue") -> list[BlockHash]:
    tokens = [TokenId(token) for token in range(blocks * SIZE)]
    return list(HashChain(tenant_key(b"", TenantId(tenant)), block_tokens=SIZE).extend_to(tokens))


def put(cache: PrefixCache, group: int, chain: list[BlockHash], *indices: int) -> None:
    """Caches blocks of a chain in a group."""
    for index in indices:
        pool = cache.pools[group]
        block = pool.seal(pool.allocate(OWNER), OWNER, chain[index])
        pool.release(block, OWNER)


@pytest.mark.parametrize(("tokens", "found"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12), (15, 12)])
def test_the_last_token_is_always_left_to_compute(tokens: int, found: int) -> None:
    cache, chain = cache_of(None), chain_of(3)
    put(cache, 0, chain, 0, 1, 2)
    assert cache.match(chain[: tokens // SIZE], tokens=tokens).tokens == found


def test_a_hit_lists_the_blocks_of_each_group_from_where_it_needs_them() -> None:
    cache, chain = cache_of(None, 5), chain_of(4)
    put(cache, 0, chain, 0, 1, 2, 3)
    put(cache, 1, chain, 3, 2)
    hit = cache.match(chain, tokens=17)
    assert (hit.tokens, hit.reached) == (16, 16)
    assert hit.blocks == ((0, 1, 2, 3), (None, None, 1, 0))


def test_a_hole_ends_a_prefix_of_full_attention() -> None:
    cache, chain = cache_of(None), chain_of(4)
    put(cache, 0, chain, 0, 2, 3)
    assert cache.match(chain, tokens=17).tokens == 4


def test_a_hole_before_the_window_does_not_matter() -> None:
    cache, chain = cache_of(4), chain_of(4)
    put(cache, 0, chain, 3)
    hit = cache.match(chain, tokens=17)
    assert (hit.tokens, hit.blocks) == (16, ((None, None, None, 0),))


def test_two_windows_have_to_agree_on_one_end() -> None:
    """The first could end at 4 or 3 blocks, the second at 3 or 1: each pulls the other back."""
    cache, chain = cache_of(4, 8), chain_of(4)
    put(cache, 0, chain, 0, 2, 3)
    put(cache, 1, chain, 0, 1, 2)
    assert cache.match(chain, tokens=17).tokens == 12
    put(cache, 1, chain, 3)
    assert cache.match(chain, tokens=17).tokens == 16


def test_groups_do_not_serve_each_other() -> None:
    cache, chain = cache_of(None, None), chain_of(2)
    put(cache, 0, chain, 0, 1)
    assert cache.match(chain, tokens=9).tokens == 0


def test_tenants_do_not_serve_each_other() -> None:
    cache = cache_of(None)
    put(cache, 0, chain_of(2, "blue"), 0, 1)
    assert cache.match(chain_of(2, "blue"), tokens=9).tokens == 8
    assert cache.match(chain_of(2, "green"), tokens=9).tokens == 0


def test_a_pool_serves_one_group_of_one_model() -> None:
    pools = cache_of(None, None).pools
    PrefixCache(namespace_of({"model": "one"}), pools, [None, None], block_tokens=SIZE)
    for namespace, others in (("two", pools), ("one", pools[::-1])):
        with pytest.raises(AssertionError, match="serves another"):
            PrefixCache(namespace_of({"model": namespace}), others, [None, None], block_tokens=SIZE)


@pytest.mark.parametrize(
    ("windows", "cached", "end"),
    [
        ((None,), ((0, 1, 2, 3),), "every full block before the last token was cached"),
        ((None,), ((),), "no cached sequence of this tenant begins with the same block of tokens"),
        ((None,), ((0, 1),), "the block at token 8 differs from what was cached, or was evicted"),
        ((None, 4), ((0, 1, 2), (0,)), "full attention matched 12 tokens, but the sliding window .* before token 4"),
        ((None, 4), ((0, 1), (1,)), "the block at token 8 differs"),
        ((4,), ((),), "of the sliding windows that end after token 0, none is cached as a whole"),
        ((4, 8), ((0, 1, 2, 3), (0,)), "of the sliding windows that end after token 4, none"),
        ((4,), ((3,),), "every full block"),
    ],
)
def test_a_hit_says_why_it_is_no_longer(
    windows: tuple[int | None, ...], cached: tuple[tuple[int, ...], ...], end: str
) -> None:
    cache, chain = cache_of(*windows), chain_of(4)
    for group, indices in enumerate(cached):
        put(cache, group, chain, *indices)
    hit = cache.match(chain, tokens=17)
    assert re.match(end, hit.end), hit.end


# What is there, and what could be loaded


def test_residency_is_what_is_there_hole_by_hole() -> None:
    cache, chain = cache_of(None, 4), chain_of(4)
    put(cache, 0, chain, 0, 2)
    put(cache, 1, chain, 3)
    assert cache.residency(chain, 4) == ([0, None, 1, None], [None, None, None, 0])
    assert cache.residency(chain, 3) == ([0, None, 1], [None] * 3)
    assert cache.residency(chain, 9) == cache.residency(chain, 4)
    assert cache.residency(chain, 0) == cache.residency([], 4) == ([], [])


def test_a_hit_is_assembled_from_what_is_there_and_what_is_wanted() -> None:
    cache, chain = cache_of(None, 5), chain_of(4)
    put(cache, 0, chain, 0, 3)
    put(cache, 1, chain, 2, 0)
    hit = cache.assemble(chain, {(0, 1), (0, 2), (1, 3)}, tokens=Tokens(16), end="the rest is nowhere")
    assert hit is not None
    assert hit.blocks == ((0, None, None, 1), (None, None, 0, None))
    assert hit.loads == ((1, 2), (3,))
    assert (hit.tokens, hit.reached, hit.end, hit.loads_count) == (16, 16, "the rest is nowhere", 3)


def test_what_is_wanted_and_there_is_not_loaded() -> None:
    cache, chain = cache_of(None), chain_of(3)
    put(cache, 0, chain, 0, 1)
    hit = cache.assemble(chain, {(0, 0), (0, 1), (0, 2)}, tokens=Tokens(12), end="")
    assert hit is not None
    assert (hit.blocks, hit.loads) == (((0, 1, None),), ((2,),))


def test_what_the_hit_does_not_need_is_not_loaded() -> None:
    cache, chain = cache_of(None, 4), chain_of(3)
    hit = cache.assemble(chain, {(group, index) for group in (0, 1) for index in range(3)}, tokens=Tokens(8), end="")
    assert hit is not None
    assert (hit.blocks, hit.loads) == (((None, None), (None, None)), ((0, 1), (1,)))


@pytest.mark.parametrize("lost", [(0, 1), (1, 1)])
def test_without_a_block_that_it_needs_there_is_no_hit(lost: tuple[int, int]) -> None:
    cache, chain = cache_of(None, 4), chain_of(2)
    wants = {(0, 0), (0, 1), (1, 1)} - {lost}
    assert cache.assemble(chain, wants, tokens=Tokens(8), end="") is None
    put(cache, lost[0], chain, lost[1])
    assert cache.assemble(chain, wants, tokens=Tokens(8), end="") is not None


def test_a_hit_of_nothing_is_always_there() -> None:
    cache = cache_of(None, 4)
    hit = cache.assemble([], (), tokens=Tokens(0), end="")
    assert hit is not None
    assert (hit.tokens, hit.blocks, hit.loads, hit.loads_count) == (0, ((), ()), ((), ()), 0)


def test_full_attention_may_have_reached_further_than_what_is_loaded() -> None:
    cache, chain = cache_of(None, 4), chain_of(4)
    put(cache, 0, chain, 0, 1, 2)
    hit = cache.assemble(chain, {(1, 0)}, tokens=Tokens(4), end="")
    assert hit is not None
    assert (hit.tokens, hit.reached) == (4, 12)


def test_with_nothing_wanted_the_assembled_hit_is_the_match() -> None:
    cache, chain = cache_of(None, 5), chain_of(4)
    put(cache, 0, chain, 0, 1, 2, 3)
    put(cache, 1, chain, 1, 2)
    match = cache.match(chain, tokens=17)
    assert cache.assemble(chain, (), tokens=match.tokens, end=match.end) == match
    assert match.tokens == 12
