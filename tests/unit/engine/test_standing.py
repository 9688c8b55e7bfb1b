"""What is told of a prompt that nobody has asked for: as a match would find it, with nothing changed."""

from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.blocks.keys import HashChain, namespace_of, tenant_key, tenant_tag
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.engine.standing import standing_of

KEY = tenant_key(bytes(32), TenantId("blue"))
TOKENS = [TokenId(token) for token in range(11)]


def cache_with(blocks: int) -> PrefixCache:
    """A cache of one full and one windowed group, with the first blocks of the tokens; the window has the last."""
    cache = PrefixCache(namespace_of({}), [BlockPool(8), BlockPool(8)], [None, 4], block_tokens=4)
    owner = RequestId("owner")
    for group, pool in enumerate(cache.pools):
        for index, block_hash in enumerate(HashChain(KEY, block_tokens=4).extend_to(TOKENS)[:blocks]):
            if group == 0 or index == blocks - 1:
                pool.release(pool.seal(pool.allocate(owner), owner, block_hash), owner)
    return cache


def test_it_tells_what_each_group_has() -> None:
    cache = cache_with(2)
    before = [pool.statistics() for pool in cache.pools]
    standing = standing_of(cache, KEY, TOKENS)
    assert standing.resident == ((True, True), (False, True))
    assert (standing.tokens, standing.tokens_cached, len(standing.chain)) == (11, 8, 2)
    assert standing.tenant == tenant_tag(KEY)
    assert [pool.statistics() for pool in cache.pools] == before


def test_the_last_token_is_always_left_and_others_have_nothing() -> None:
    cache = cache_with(2)
    assert standing_of(cache, KEY, TOKENS[:8]).resident == ((True,), (False,))
    assert standing_of(cache, KEY, TOKENS[:1]).resident == ((), ())
    other = standing_of(cache, tenant_key(bytes(32), TenantId("red")), TOKENS)
    assert (other.resident, other.tokens_cached) == (((False, False), (False, False)), 0)
    assert other.prefix_end
