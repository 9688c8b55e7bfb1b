"""One request that is parked while its beginning is loaded: what was claimed, where it goes, what has come. Data."""

from collections import deque
from collections.abc import Sequence

from kvist.connectors.vllm.asks import Claim
from kvist.connectors.vllm.lives import Life
from kvist.fabric.messages import Landed, Ticket

Place = tuple[int, int]
"""Group and index of a block."""

Tables = tuple[Sequence[int], ...]
"""A request's block ids, by vLLM's group index."""


class Load:
    """One load.

    Attributes:
        request: its id.
        life: the request.
        ticket: of the fabric.
        claim: what was claimed.
        end: index behind the last block of the fabric that vLLM has taken of the claim.
        tables: the blocks that vLLM gave.
        deadline_s: what has not landed then does not come.
        targets: blocks that are still to come, and where to.
        arrived: landed, and not ordered yet.
        ordered: how many orders are outstanding.
        failed_index: first block that a worker could not copy.
        is_gone: the request has ended.
        is_void: the cache was reset: nothing that was loaded counts.
    """

    __slots__ = (
        "arrived",
        "claim",
        "deadline_s",
        "end",
        "failed_index",
        "is_gone",
        "is_void",
        "life",
        "ordered",
        "request",
        "tables",
        "targets",
        "ticket",
    )

    def __init__(self, request: str, life: Life, ticket: Ticket, claim: Claim) -> None:
        """A load that has not begun."""
        self.request = request
        self.life = life
        self.ticket = ticket
        self.claim = claim
        self.end = 0
        self.tables: Tables = ()
        self.deadline_s = claim.plan.deadline_s
        self.targets: dict[Place, tuple[int, ...]] = {}
        self.arrived: deque[tuple[Landed, tuple[int, ...]]] = deque()
        self.ordered = 0
        self.failed_index: int | None = None
        self.is_gone = self.is_void = False

    def first_missing(self, first: int) -> int:
        """Index of the first block that has not come, of those from `first` on."""
        if self.is_void:
            return first
        missing = [index for _, index in self.targets]
        missing += [landed.want.index for landed, _ in self.arrived]
        missing += [] if self.failed_index is None else [self.failed_index]
        return min(missing)


class Piece:
    """A landed block that stands in an order."""

    __slots__ = ("landed", "load")

    def __init__(self, load: Load, landed: Landed) -> None:
        """Of a load."""
        self.load = load
        self.landed = landed
