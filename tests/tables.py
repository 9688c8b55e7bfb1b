"""Small caches, chains and block tables, what is done to them, and the check that they agree with each other."""

from collections.abc import Sequence

from kvist.base.ids import BlockHash, RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.blocks.keys import HashChain, namespace_of, tenant_key
from kvist.blocks.ledger import check_pool
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.blocks.table import BlockTable
from kvist.blocks.window import Marks, Retention

SIZE = 4
NOTHING = Retention(checkpoint_tokens=Tokens(1000), slack_tokens=Tokens(0))
"""Keeps no window but that before a prompt's end."""


def cache_of(*windows: int | None, blocks: int = 32, size: int = SIZE) -> PrefixCache:
    sizes = [None if window is None else Tokens(window) for window in windows]
    return PrefixCache(namespace_of({}), [BlockPool(blocks) for _ in windows], sizes, block_tokens=size)


def chain_of_text(tokens: Sequence[int], *, size: int = SIZE) -> list[BlockHash]:
    """The chain of a tenant's tokens."""
    return list(HashChain(tenant_key(b"", TenantId("blue")), block_tokens=size).extend_to([*map(TokenId, tokens)]))


def chain_of(tokens: int, *, size: int = SIZE, last: int | None = None) -> list[BlockHash]:
    """The chain of 0, 1, 2, ...; `last` takes the place of the last token."""
    sequence = list(range(tokens))
    if last is not None:
        sequence[-1] = last
    return chain_of_text(sequence, size=size)


def table_of(cache: PrefixCache, name: str = "A", retention: Retention = NOTHING) -> BlockTable:
    return BlockTable(cache, RequestId(name), retention)


def run(table: BlockTable, computed: int, *, prompt: int = 10_000, last: int | None = None) -> None:
    """Grows to a length, as if the tokens up to there were computed in one step."""
    table.grow(computed)
    table.commit(chain_of(computed, size=table._cache.block_tokens, last=last), computed, Marks(prompt_tokens=prompt))


def check(cache: PrefixCache, *tables: BlockTable) -> None:
    """The pools say what the tables say, and the tables agree with themselves."""
    for group, pool in enumerate(cache.pools):
        check_pool(pool, {table._owner: table.held()[group] for table in tables})
    for table in tables:
        assert table.held_counts() == [len(held) for held in table.held()]
        for (first, blocks), entries in zip(table.runs(), table.groups, strict=True):
            assert [*[None] * first, *blocks] == entries


def kept_by(table: BlockTable, computed: int, *, prompt: int = 10_000) -> list[tuple[int, int]]:
    """Grows to a length; which blocks became worth keeping, each checked against the pool and the chain."""
    table.grow(computed)
    chain = chain_of(computed)
    kept = table.commit(chain, computed, Marks(prompt_tokens=prompt))
    for each in kept:
        pool = table._cache.pools[each.group]
        assert (pool.hash(each.block), pool.find(each.hash), chain[each.index]) == (each.hash, each.block, each.hash)
    return [(each.group, each.index) for each in kept]
