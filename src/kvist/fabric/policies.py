"""The questions that policies answer, each a tiny pure class chosen by name.

    which KV to keep     Admission, EvictionOrder
    where it lives       Placement
    how long it stays    Retention
    how much is loaded   LoadChoice

Policies see plain data and decide; they read no clock and move nothing. One name per policy, the same in the
configuration, in `kvist cache explain` and in the tables at the end of this file.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvist.base.ids import GroupId
from kvist.blocks.keys import BlockKey, TenantTag
from kvist.cost.choice import Choice, Exploration, Prospect, choose, choose_longest
from kvist.fabric.messages import TierName


class EvictionOrder(Protocol):
    """Orders the records of one class of one tier that may be evicted.

    The books call `add` when a record may be evicted from now on, `remove` when it no longer may, whatever the cause
    (`choose` does not remove), and never add a key twice. Each call is made under one lock and costs at most
    O(log n).
    """

    def add(self, key: BlockKey) -> None:
        """Somebody wrote the record or read it last a moment ago, and nobody holds it now."""
        ...

    def touch(self, key: BlockKey) -> None:
        """A record in the order was wanted, without being held."""
        ...

    def remove(self, key: BlockKey) -> None:
        """The record is held, pinned or gone."""
        ...

    def choose(self) -> BlockKey:
        """The record to give up next; there is at least one. Changes nothing."""
        ...


class LongestUnused:
    """Gives up the record that nobody has wanted for longest (LRU).

    Who releases the blocks of a sequence last to first keeps its head longer than its tail, so that what stays is
    still reachable.
    """

    def __init__(self) -> None:
        self._order: OrderedDict[BlockKey, None] = OrderedDict()

    def add(self, key: BlockKey) -> None:
        """Puts the record at the far end of the queue."""
        self._order[key] = None

    def touch(self, key: BlockKey) -> None:
        """Sends the record back to the far end."""
        self._order.move_to_end(key)

    def remove(self, key: BlockKey) -> None:
        """Takes the record out of the queue, wherever it stands."""
        del self._order[key]

    def choose(self) -> BlockKey:
        """The record at the head of the queue."""
        return next(iter(self._order))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A block that the engine offers.

    Attributes:
        index: of the block within its sequence.
        record_bytes: what it would take in each tier, alignment aside.
    """

    tenant: TenantTag
    group: GroupId
    index: int
    record_bytes: int


class Admission(Protocol):
    """Says which offered blocks are worth storing at all. Called once per block, in microseconds."""

    def admits(self, candidate: Candidate) -> bool:
        """Whether to store it. Depends on nothing but the candidate and what this policy was told before."""
        ...


class AdmitEverything:
    """Stores whatever is offered."""

    def admits(self, candidate: Candidate) -> bool:  # noqa: ARG002  the answer is the same for all
        """True."""
        return True


class Placement(Protocol):
    """Says in which tiers a record should be.

    `tiers` are always those in use, fastest first; answers are some of them, in the same order.
    """

    def stores(self, tiers: Sequence[TierName]) -> Sequence[TierName]:
        """Where to write a block that the engine has just filled."""
        ...

    def promotes(self, loaded_from: TierName, tiers: Sequence[TierName]) -> Sequence[TierName]:
        """Where to write a record that was just loaded from one of the tiers, while its bytes are at hand."""
        ...


class WriteThrough:
    """Writes everything to every tier at once, and what a lower tier had to all above it."""

    def stores(self, tiers: Sequence[TierName]) -> Sequence[TierName]:
        """All of them."""
        return tuple(tiers)

    def promotes(self, loaded_from: TierName, tiers: Sequence[TierName]) -> Sequence[TierName]:
        """Those that are faster than the one it came from; none when that one is no longer in use."""
        return tuple(tiers[: tiers.index(loaded_from)]) if loaded_from in tiers else ()


class Retention(Protocol):
    """Says how long a record may stay; the pin of an operator is another matter."""

    def expires_unix_s(self, created_unix_s: float) -> float | None:
        """When a record that is written at this moment expires, by the wall clock; None: never."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToLive:
    """Every record expires the same time after it was written.

    Attributes:
        ttl_s: positive; None: records do not expire.
    """

    ttl_s: float | None = None

    def expires_unix_s(self, created_unix_s: float) -> float | None:
        """`ttl_s` later, or None."""
        return None if self.ttl_s is None else created_unix_s + self.ttl_s


class LoadChoice(Protocol):
    """Says how much of a sequence to load; pure, see `kvist.cost.choice.choose`."""

    def __call__(self, prospects: Sequence[Prospect], exploration: Exploration, *, now_s: float) -> Choice:
        """The prospect to take, of which the first loads nothing."""
        ...


LOAD_CHOICES: Mapping[str, LoadChoice] = {"cheaper": choose, "always": choose_longest}
EVICTION_ORDERS: Mapping[str, Callable[[], EvictionOrder]] = {"lru": LongestUnused}
ADMISSIONS: Mapping[str, Callable[[], Admission]] = {"everything": AdmitEverything}
PLACEMENTS: Mapping[str, Callable[[], Placement]] = {"write-through": WriteThrough}
RETENTIONS: Mapping[str, Callable[[float | None], Retention]] = {"ttl": lambda ttl_s: TimeToLive(ttl_s=ttl_s)}
"""Each takes the seconds of the configuration, None where it names none."""
