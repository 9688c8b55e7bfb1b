"""What the scheduler's side tells the workers with each step, and what they tell it: plain, picklable values.

    scheduler ── StepOrders ──▶ every worker ── copies ──▶ StepReport ── merged over the workers ──▶ scheduler

Law: a buffer that stands in an order is touched by nobody else until every worker has acknowledged the order, whatever
became of the request meanwhile.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NewType

from kvist.connectors.vllm.shapes import RecordShape
from kvist.tiers.regions import Buffer, RegionHandle

OrderId = NewType("OrderId", int)
"""One copy of one record, in or out; never used twice."""


class CopyOrder(NamedTuple):
    """One record to copy between its payload in shared memory and the engine's blocks.

    Attributes:
        id: under which it is acknowledged.
        group: of the record: an index into the groups that are stored, the same for fabric and workers.
        blocks: the engine's block ids whose contents the record holds, in order; one, or several where this group's
            blocks are shorter than the fabric's.
        buffer: the payload alone, of all workers together.
    """

    id: OrderId
    group: int
    blocks: tuple[int, ...]
    buffer: Buffer


class LoadEnd(NamedTuple):
    """A request's load is over once the orders given for it so far are done.

    Attributes:
        request: its id in the engine.
        failed: whether something is missing.
        invalid: the engine's blocks that hold nothing valid, for engines that recompute from the first of them on;
            empty where the whole request is recomputed.
    """

    request: str
    failed: bool
    invalid: tuple[int, ...] = ()


class InOrder(NamedTuple):
    """A record to copy into the engine, and for which request."""

    request: str
    copy: CopyOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrders:
    """What the workers do with one step.

    Attributes:
        regions: shared memory that orders may name; those a worker has not seen yet are mapped before anything else.
        shapes: of the records of each group, so that a worker knows its share of them; with every step until the first
            report has come back, as the regions, and empty from then on.
        stores: copied out after the step has computed.
        loads: copied in, into blocks that no running request uses.
        ends: loads that end with the orders given so far.
        freed: requests that have finished and whose blocks the stores need no longer.
    """

    regions: tuple[RegionHandle, ...] = ()
    shapes: tuple[RecordShape, ...] = ()
    stores: tuple[CopyOrder, ...] = ()
    loads: tuple[InOrder, ...] = ()
    ends: tuple[LoadEnd, ...] = ()
    freed: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.stores or self.loads or self.ends or self.freed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What became of orders, of this step or of earlier ones.

    Attributes:
        done: how many workers have carried out each order, or given it up; nobody of them looks at its buffer again.
        failed: orders that some worker could not carry out.
        copy_s: seconds that copying took, of the slowest worker.
        copied_bytes: of all workers.
    """

    done: Mapping[OrderId, int] = field(default_factory=dict)
    failed: frozenset[OrderId] = frozenset()
    copy_s: float = 0.0
    copied_bytes: int = 0

    def merged(self, other: "StepReport") -> "StepReport":
        """What two sets of workers have reported together."""
        return StepReport(
            done=dict(Counter(self.done) + Counter(other.done)),
            failed=self.failed | other.failed,
            copy_s=max(self.copy_s, other.copy_s),
            copied_bytes=self.copied_bytes + other.copied_bytes,
        )
