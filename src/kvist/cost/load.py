"""Seconds of loading records from a tier: a latency per job, and bytes over bandwidth.

Knows bytes and seconds; knows no tier by name, only what kinds of medium usually do.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from kvist.cost.estimate import Estimate, estimate_of

Medium = Literal["dram", "disk", "pool"]

_PRIORS: dict[Medium, tuple[float, float]] = {
    "dram": (50e-6, 8e9),
    "disk": (200e-6, 1.5e9),
    "pool": (1e-3, 0.4e9),
}
"""Latency in seconds and bytes per second: starting points, replaced by what is learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadModel:
    """How long one tier takes; learning gives a new model.

    Attributes:
        estimate: of seconds per job and seconds per byte, within one job.
        lanes: how many jobs the tier works on at once.
        learned_at_s: when the last timing was learned, by the caller's clock; None: never.
    """

    estimate: Estimate
    lanes: int = 1
    learned_at_s: float | None = None

    @property
    def latency_s(self) -> float:
        """Seconds of a job before its first byte."""
        return self.estimate.costs[0]

    @property
    def bandwidth(self) -> float:
        """Bytes per second of one job."""
        return 1 / self.estimate.costs[1]

    def predict_s(self, nbytes: int, *, queued_bytes: int = 0, jobs: int = 1) -> float:
        """Seconds until a load has landed; loading nothing takes none.

        Args:
            nbytes: bytes to load.
            queued_bytes: what the tier has to do before.
            jobs: into how many the load is split.
        """
        if nbytes <= 0:
            return 0.0
        rounds = max(1.0, jobs / self.lanes)
        return self.estimate.predict_s((rounds, (max(0, queued_bytes) + nbytes) / self.lanes))

    def hopeful_s(self, nbytes: int, *, jobs: int = 1) -> float:
        """Seconds that a load might take if the tier were idle and as good as its medium usually is, or better."""
        unlearned = replace(self, estimate=estimate_of(self.estimate.prior))
        return min(unlearned.predict_s(nbytes, jobs=jobs), self.predict_s(nbytes, jobs=jobs))

    def learned(self, nbytes: int, seconds: float, *, now_s: float) -> "LoadModel":
        """What is known once one job is done. Timings that cannot be are left out.

        Args:
            nbytes: bytes that the job brought; a job that failed half-way tells nothing.
            seconds: of the tier's work, without the time in its queue.
            now_s: when it was done.
        """
        if nbytes <= 0 or not (math.isfinite(seconds) and seconds > 0):
            return self
        return replace(self, estimate=self.estimate.learned((1.0, float(nbytes)), seconds), learned_at_s=now_s)

    def unlearned_for_s(self, now_s: float) -> float:
        """Seconds since the tier was last timed; infinite when it never was."""
        return math.inf if self.learned_at_s is None else max(0.0, now_s - self.learned_at_s)


def load_model(medium: Medium, *, lanes: int = 1) -> LoadModel:
    """What is known of a tier that was never used.

    Args:
        medium: what it is made of.
        lanes: how many jobs it works on at once.

    >>> round(load_model("disk").predict_s(150_000_000), 4)
    0.1002
    """
    assert lanes >= 1, f"{lanes} lanes"
    latency_s, bandwidth = _PRIORS[medium]
    return LoadModel(estimate=estimate_of((latency_s, 1 / bandwidth)), lanes=lanes)
