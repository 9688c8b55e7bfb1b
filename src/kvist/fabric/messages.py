"""What an engine asks of the fabric and what it is told: plain values, so that either may move to another process.

Words: a *query* names a sequence by its chained hashes. A *plan* says how much of it to load, from where, and what
else was possible. *Landed* pieces are verified records in shared memory, for the engine's own thread to copy into its
blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, NewType

from kvist.base.ids import BlockHash, GroupId
from kvist.base.units import Bytes, Tokens
from kvist.blocks.keys import TenantTag
from kvist.tiers.regions import Buffer

Ticket = NewType("Ticket", int)
"""One thing that was asked for; names the owner of whatever is held for it. Never used twice."""

TierName = NewType("TierName", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A sequence whose KV may be below the engine.

    Attributes:
        tenant: on whose behalf.
        chain: hashes of its full blocks, first to last.
        tokens: its length; at least one token is always left to compute.
    """

    tenant: TenantTag
    chain: Sequence[BlockHash]
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Tokens by where they come from: a tier's name, or "G1"."""

    tier: str
    tokens: Tokens
    bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to begin a sequence.

    Attributes:
        tokens: of the prefix that would not be computed.
        sources: where they would come from.
        load_s, prefill_s: predicted seconds of loading, and of computing the rest.
    """

    tokens: Tokens
    sources: tuple[Source, ...]
    load_s: float
    prefill_s: float

    @property
    def total_s(self) -> float:
        """Until the first token."""
        return self.load_s + self.prefill_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was chosen, among what, and why.

    Attributes:
        chosen: the option taken; `options` has it too, in order of length.
        reason: in words a user understands, figures included.
        explored: chosen to learn about a tier although something else looked cheaper.
    """

    chosen: Option
    options: tuple[Option, ...]
    reason: str
    explored: bool = False


class Want(NamedTuple):
    """One block to load: block `index` of the sequence in one group, from a tier.

    A tuple, because plans of long sequences have thousands and are made while others wait.
    """

    group: GroupId
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs of a Want
    tier: TierName


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a sequence should begin.

    Attributes:
        tokens: length of the prefix once everything wanted has landed; a multiple of the block size.
        wants: what must be loaded for it, in the order of positions; empty when the engine has it all.
        deadline_s: by the monotonic clock; what has not landed then is recomputed.
    """

    tokens: Tokens
    wants: tuple[Want, ...]
    deadline_s: float
    decision: Decision


class Landed(NamedTuple):
    """A verified record, to be copied out of shared memory and then given back with `taken`.

    `buffer` is the payload alone, without the header.
    """

    want: Want
    buffer: Buffer


LoadState = Literal["loading", "complete", "failed"]
"""Failed: something is missing, damaged or late; what has landed may still be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A block that the engine has just filled.

    Attributes:
        index: of the block within its sequence, which gives the first position.
    """

    tenant: TenantTag
    group: GroupId
    hash: BlockHash
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Where to copy an offered block's payload; then `Fabric.store` or `Fabric.withdraw`."""

    ticket: Ticket
    buffer: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """The offer is not taken, now ("busy": no staging, offer it again) or at all."""

    reason: Literal["stored", "not admitted", "no tier", "busy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierBooks:
    """The ledger of one tier, in records; law 6: stored = resident + evicted + expired + purged + quarantined + lost.

    A keyed tier evicts and expires by itself, so there `resident` is what remains of the sum.

    Attributes:
        queried: blocks that plans looked for in this tier; hit + miss of them.
        loaded, load_failures, late: blocks that landed, that did not, and those given up at a deadline.
        declined: stores not taken: full, over a quota, breaker open.
        bytes_used, bytes_max: None where only the store knows.
        breaker: "closed" (in use), "open" (left alone for now), "half-open" (being tried).
    """

    name: TierName
    stored: int = 0
    resident: int = 0
    evicted: int = 0
    expired: int = 0
    purged: int = 0
    quarantined: int = 0
    lost: int = 0
    queried: int = 0
    hit: int = 0
    miss: int = 0
    loaded: int = 0
    load_failures: int = 0
    late: int = 0
    declined: int = 0
    bytes_used: int | None = None
    bytes_max: int | None = None
    breaker: Literal["closed", "open", "half-open"] = "closed"


TIER_EVENTS = (
    "stored",
    "evicted",
    "expired",
    "purged",
    "quarantined",
    "lost",
    "queried",
    "hit",
    "miss",
    "loaded",
    "load_failures",
    "late",
    "declined",
)  # fmt: skip  the ledger, then what was asked of it
"""Fields of `TierBooks` that only grow."""

BREAKER_STATES = ("closed", "half-open", "open")


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricStatistics:
    """A frozen snapshot of the whole fabric.

    Attributes:
        stores_dropped: blocks the engine let go before there was room to copy them.
        staging_bytes_used, staging_bytes: of the shared memory that loads and stores pass through.
    """

    tiers: tuple[TierBooks, ...]
    loads_running: int
    stores_running: int
    stores_dropped: int
    staging_bytes_used: int
    staging_bytes: int
