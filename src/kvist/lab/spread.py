"""Medians, percentiles and ratios with their spread; pure.

A single number without its spread says little about a measurement, so nothing here returns one alone
where several samples were taken. Percentiles interpolate linearly between the two nearest samples.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A few samples of one quantity, in the quantity's own unit.

    Attributes:
        count: samples taken.
        median: the middle sample.
        q1: the 25th percentile; `q3` is the 75th, and their difference is the interquartile range.
        min: the smallest sample; `max` is the largest.
    """

    count: int
    median: float
    q1: float
    q3: float
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Many samples of one quantity, in the quantity's own unit, as a latency report wants them."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def percentile(values: Sequence[float], fraction: float) -> float:
    """Value below which a fraction of the samples lies.

    Args:
        values: at least one finite sample, in any order.
        fraction: within [0, 1].

    Raises:
        ValueError: there are no samples, or the fraction is out of range.

    >>> percentile([4.0, 1.0, 2.0], 0.5), percentile([0.0, 10.0], 0.9)
    (2.0, 9.0)
    """
    if not values or not 0 <= fraction <= 1:
        raise ValueError(f"percentile {fraction} of {len(values)} samples does not exist")
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    between = below + (above - below) * (place - math.floor(place))
    return min(max(between, below), above)  # rounding must not lead outside the two neighbours


def spread(values: Sequence[float]) -> Spread:
    """Median, quartiles and extremes of at least one sample.

    Raises:
        ValueError: there are no samples.
    """
    return Spread(
        count=len(values),
        median=percentile(values, 0.5),
        q1=percentile(values, 0.25),
        q3=percentile(values, 0.75),
        min=min(values),
        max=max(values),
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    """Mean, p50, p90, p99 and maximum of at least one sample.

    Raises:
        ValueError: there are no samples.
    """
    return Percentiles(
        count=len(values),
        mean=statistics.fmean(values) if values else 0.0,
        p50=percentile(values, 0.5),
        p90=percentile(values, 0.9),
        p99=percentile(values, 0.99),
        max=max(values),
    )


def pairwise_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, ...]:
    """Ratio of each pair of samples that were taken together.

    Raises:
        ValueError: the two differ in length, or a denominator is not positive.

    >>> pairwise_ratios([4.0, 9.0], [2.0, 3.0])
    (2.0, 3.0)
    """
    if any(value <= 0 for value in denominators):
        raise ValueError(f"a ratio needs positive denominators, not {min(denominators)}")
    return tuple(top / bottom for top, bottom in zip(numerators, denominators, strict=True))
