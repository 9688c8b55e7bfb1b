"""What G1 has of a prompt that nobody has asked for: what an explanation starts from."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.base.ids import BlockHash, TokenId
from kvist.base.units import Tokens
from kvist.blocks.keys import HashChain, TenantKey, TenantTag, tenant_tag
from kvist.blocks.prefix import PrefixCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A prompt as the prefix cache sees it now.

    Attributes:
        tenant: on whose behalf.
        chain: hashes of its full blocks.
        tokens: its length.
        tokens_cached: length of the prefix that G1 would serve.
        prefix_end: why that is not longer.
        resident: `[group][index]`: which blocks G1 has.
    """

    tenant: TenantTag
    chain: tuple[BlockHash, ...]
    tokens: Tokens
    tokens_cached: Tokens
    prefix_end: str
    resident: tuple[tuple[bool, ...], ...]


def standing_of(cache: PrefixCache, key: TenantKey, tokens: Sequence[TokenId]) -> Standing:
    """Looks a prompt up and changes nothing.

    Args:
        cache: of the engine, on whose thread this runs.
        key: of the tenant on whose behalf.
        tokens: of the prompt, at least one.
    """
    hashes = tuple(HashChain(key, block_tokens=cache.block_tokens).extend_to(tokens))
    hit = cache.match(hashes, tokens=len(tokens))
    found = cache.residency(hashes, (len(tokens) - 1) // cache.block_tokens)
    return Standing(
        tenant=tenant_tag(key),
        chain=hashes,
        tokens=Tokens(len(tokens)),
        tokens_cached=hit.tokens,
        prefix_end=hit.end,
        resident=tuple(tuple(block is not None for block in group) for group in found),
    )
