"""Where the tokens of a prefix came from, each counted once.

A token whose block was loaded in any KV group came from that tier, in the order of the groups; else from G1. Tokens
before a window need no block at all: they count as those after them, which stand for them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from kvist.base.units import Bytes, Tokens
from kvist.blocks.prefix import Hit
from kvist.fabric.messages import Source, TierName, Want

OWN_MEMORY = "G1"
"""The name of the first tier among the others."""


def sources_of(hit: Hit, wants: Iterable[Want], loaded: Mapping[str, int], fresh: range) -> tuple[Source, ...]:
    """Divides tokens of a hit among the tiers, G1 first and the others by name.

    Args:
        hit: what a sequence begins from; `loads` says which blocks were really loaded.
        wants: which tier each of these came from; those of others do not matter.
        loaded: bytes by tier.
        fresh: the tokens to divide, at the beginning of the hit.
    """
    counted = _tokens_by_tier(hit, wants, fresh)
    names = sorted({*counted, *loaded}, key=lambda name: (name != OWN_MEMORY, name))
    return tuple(Source(tier=name, tokens=Tokens(counted[name]), bytes=Bytes(loaded.get(name, 0))) for name in names)


def _tokens_by_tier(hit: Hit, wants: Iterable[Want], fresh: range) -> Counter[str]:
    counted: Counter[str] = Counter()
    if not fresh:
        return counted
    if not hit.loads_count:
        counted[OWN_MEMORY] = len(fresh)
        return counted
    loaded = _tier_of_each(hit, wants)
    blocks = len(hit.blocks[0])
    size = hit.tokens // blocks
    tier = OWN_MEMORY
    for index in range(blocks - 1, fresh.start // size - 1, -1):
        if index in loaded:
            tier = loaded[index]
        elif any(found[index] is not None for found in hit.blocks):
            tier = OWN_MEMORY
        counted[tier] += max(0, min(fresh.stop, (index + 1) * size) - max(fresh.start, index * size))
    return +counted


def _tier_of_each(hit: Hit, wants: Iterable[Want]) -> dict[int, TierName]:
    tiers: dict[tuple[int, int], TierName] = {(want.group, want.index): want.tier for want in wants}
    found: dict[int, TierName] = {}
    for group, indices in enumerate(hit.loads):
        for index in indices:
            found.setdefault(index, tiers[group, index])
    return found
