"""One step's work as plain data: which tokens of which sequences to compute, over which blocks.

The engine decides it, a backend carries it out; neither needs the other's types.
"""

from dataclasses import dataclass

from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.engine.request import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """The live blocks of one sequence in one KV group.

    Attributes:
        first: index of the first of them in the sequence: it starts at position first * block_tokens.
        blocks: consecutive from there on, at least up to the end of the chunk.
    """

    first: int
    blocks: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawSpec:
    """How to draw the token after a chunk.

    Attributes:
        sampling: temperature and filters.
        uniform: the number in [0, 1) that decides the draw.
    """

    sampling: Sampling
    uniform: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive tokens of one sequence.

    Attributes:
        request_id: whose they are.
        tokens: the tokens to compute; their KV is written.
        start: position of the first; the KV of all positions below is in the blocks already.
        runs: the sequence's live blocks, by KV group.
        draw: set when the chunk ends the sequence so far, so that a next token is wanted.
    """

    request_id: RequestId
    tokens: tuple[TokenId, ...]
    start: int
    runs: tuple[BlockRun, ...]
    draw: DrawSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A drawn token, with log-probabilities where they were asked for."""

    token: TokenId
    logprob: float | None = None
    top: tuple[tuple[TokenId, float], ...] = ()


Batch = tuple[Chunk, ...]
