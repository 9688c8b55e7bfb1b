"""What the scheduler's side counts: frozen snapshots, and the one mutable tally that its parts share."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvist.fabric.messages import FabricStatistics

COMPUTED = "computed"
"""Tokens that vLLM computed."""

LOCAL = "G1"
"""Tokens that vLLM still had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """A frozen snapshot. Law 6: each token of a request that began is in `tokens` once.

    Attributes:
        requests: that are known now.
        bypassed: requests whose adapter could not be told from others; they used nothing and left nothing.
        tokens: that requests began with, by source: "G1" (vLLM's own cache), a tier, or "computed".
        loads: by what became of them: "complete", "failed" (something was missing or damaged), "late" (its deadline
            passed), "aborted" (its request went away), "reset" (the cache was reset meanwhile).
        loads_running: begun and not ended yet.
        stores: blocks of groups by what became of them: "done", "failed" (a worker could not copy), "dropped" (given up
            before there was room), of those that were to be stored.
        stores_running: in orders.
        held: finished requests whose blocks wait for room.
        orders: outstanding.
        copy_s: seconds that steps spent on copying.
        copied_bytes: by all workers.
        fabric: everything below.
    """

    requests: int
    bypassed: int
    tokens: Mapping[str, int]
    loads: Mapping[str, int]
    loads_running: int
    stores: Mapping[str, int]
    stores_running: int
    held: int
    orders: int
    copy_s: float
    copied_bytes: int
    fabric: FabricStatistics


@dataclass(slots=True)
class Tally:
    """Counts that only grow."""

    tokens: Counter[str] = field(default_factory=Counter)
    loads: Counter[str] = field(default_factory=Counter)
    stores: Counter[str] = field(default_factory=Counter)
    copy_s: float = 0.0
    copied_bytes: int = 0


def apportioned(weights: Sequence[tuple[str, int]], total: int) -> dict[str, int]:
    """Divides a whole number among names, in proportion to their weights, so that the parts sum to it exactly.

    What rounding leaves goes to whom it took most from.

    >>> apportioned([("dram", 2), ("disk", 1)], 32)
    {'dram': 21, 'disk': 11}
    """
    whole = sum(weight for _, weight in weights)
    if total <= 0 or whole <= 0:
        return {}
    exact = [(name, weight * total // whole, weight * total % whole) for name, weight in weights]
    left = total - sum(share for _, share, _ in exact)
    favoured = {name for name, _, _ in sorted(exact, key=lambda each: -each[2])[:left]}
    shares = {name: share + (name in favoured) for name, share, _ in exact}
    return {name: share for name, share in shares.items() if share}
