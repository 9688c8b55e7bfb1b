"""How many numbers the parts of a model hold, and how many of them one token is multiplied with.

Knows matrices, not families: what a model is made of is told in `kvist.geometry.families`.
"""

from dataclasses import dataclass

from kvist.geometry.heads import Heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Numbers of a part of a model; parts add up.

    Attributes:
        total: all of them.
        idle: those that no single token is multiplied with: of the experts it does not choose, and of tables
            of which it reads one row.
        experts: those of experts that are chosen among.
        tables: those of tables of which a token reads one row.
    """

    total: int = 0
    idle: int = 0
    experts: int = 0
    tables: int = 0

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(
            total=self.total + other.total,
            idle=self.idle + other.idle,
            experts=self.experts + other.experts,
            tables=self.tables + other.tables,
        )


def vectors(count: int) -> Weights:
    """So many numbers that every token meets: norms, biases, gates."""
    return Weights(total=count)


def linear(inputs: int, outputs: int, *, bias: bool = False) -> Weights:
    """A matrix, and a bias for each output.

    >>> linear(3, 2, bias=True).total
    8
    """
    return Weights(total=inputs * outputs + (outputs if bias else 0))


def gated(hidden: int, width: int, *, bias: bool = False) -> Weights:
    """A feed-forward part with a gate: two matrices in, one out."""
    return linear(hidden, 2 * width, bias=bias) + linear(width, hidden, bias=bias)


def experts(each: Weights, *, count: int, chosen: int) -> Weights:
    """So many of a part, of which each token chooses some.

    >>> experts(linear(3, 2), count=8, chosen=2)
    Weights(total=48, idle=36, experts=48, tables=0)
    """
    return Weights(total=count * each.total, idle=(count - chosen) * each.total, experts=count * each.total)


def table(rows: int, width: int) -> Weights:
    """A table of which each token reads one row."""
    return Weights(total=rows * width, idle=rows * width, tables=rows * width)


def attention(hidden: int, heads: Heads, *, bias: bool = False, bias_out: bool = False, gate: bool = False) -> Weights:
    """The four projections of attention; a gate doubles the one of the queries."""
    queries, keys = heads.query * heads.dim, heads.kv * heads.dim
    inner = linear(hidden, queries * (2 if gate else 1), bias=bias) + linear(hidden, 2 * keys, bias=bias)
    return inner + linear(queries, hidden, bias=bias_out)


def causal_convolution(channels: int, kernel: int, *, bias: bool = False) -> Weights:
    """A convolution over the last so many tokens, each channel by itself."""
    return vectors(channels * kernel + (channels if bias else 0))
