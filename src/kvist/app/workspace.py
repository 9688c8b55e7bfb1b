"""Steps that an engine computes before any request: the first, and the fullest, to see how much memory one takes."""

from collections.abc import Callable, Iterator
from typing import Protocol

from kvist.app.memory import HostMeter
from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.base.units import Bytes
from kvist.engine.backend import Backend
from kvist.engine.batch import Batch, BlockRun, Chunk, DrawSpec, batch_of
from kvist.engine.request import Sampling
from kvist.planner.budget import KvLimits

_COSTLIEST = Sampling(top_p=0.5, logprobs=0)
"""Sorts the whole vocabulary; rows are drawn one after the other, so one of this kind shows the most."""


_FIRST_TOKENS = 160
"""More than any backend takes for few."""


class Meter(Protocol):
    """Measures the most memory that was taken between two calls, on whatever device computes."""

    def start(self) -> None:
        """What is taken from now on counts."""
        ...

    def taken(self) -> Bytes:
        """The most bytes taken at once since `start`, given back or not."""
        ...


def measure_workspace(
    make_backend: Callable[[int], Backend], limits: KvLimits, *, groups: int, rows: int, meter: Meter | None = None
) -> Bytes:
    """Computes a step as full as can be and returns the bytes it took at its peak.

    Args:
        make_backend: makes a backend whose pools have this many blocks; it is dropped when the step is done.
        limits: lengths of a step and of a sequence.
        groups: number of KV groups.
        rows: how many tokens of the longest sequence show what more of them would take.
        meter: of the memory that the backend computes in; None takes the process's own.
    """
    meter = meter or HostMeter()
    batch = fullest_batch(limits, groups=groups, rows=rows)
    backend = make_backend(1 + max(block for chunk in batch for run in chunk.runs for block in run.blocks))
    meter.start()
    backend.run(batch)
    return meter.taken()


def warm_up(make_backend: Callable[[int], Backend], limits: KvLimits, *, groups: int) -> None:
    """Computes small steps that go through all that a backend makes ready when it first needs it.

    Args:
        make_backend: makes a backend whose pools have this many blocks; it is dropped when the steps are done.
        limits: lengths of a step and of a sequence.
        groups: number of KV groups.
    """
    size = limits.block_tokens
    length = min(limits.step_tokens, limits.model_tokens_max, _FIRST_TOKENS)
    blocks = list(range(-(-length // size)))
    whole = _chunk(1, length, start=0, blocks=blocks, groups=groups)
    ends = [_chunk(index, 1, start=length - 1, blocks=blocks, groups=groups) for index in (1, 2)]
    backend = make_backend(len(blocks))
    for chunks in ([whole], ends[: limits.sequences_max]):
        backend.run(batch_of(chunks, block_tokens=size))


def fullest_batch(limits: KvLimits, *, groups: int, rows: int) -> Batch:
    """A step of all the tokens and sequences that one may have, the first of which ends the longest one allowed.

    It shows what a long context costs, the others what many tokens and many logits do. So that no large pool is
    needed, the context before the first chunk is one block over and over, and all others share their blocks; what
    is computed means nothing.
    """
    size = limits.block_tokens
    first, *others = _lengths(limits, rows)
    context = (limits.model_tokens_max - first) // size
    own, shared = -(-first // size), -(-max(others, default=0) // size)
    blocks = [*[0] * context, *range(1, 1 + own)]
    chunks = [_chunk(0, first, start=context * size, blocks=blocks, groups=groups)]
    for index, length in enumerate(others, start=1):
        blocks = list(range(1 + own, 1 + own + shared))[: -(-length // size)]
        chunks.append(_chunk(index, length, start=0, blocks=blocks, groups=groups))
    return batch_of(chunks, block_tokens=size)


def _lengths(limits: KvLimits, rows: int) -> Iterator[int]:
    """Tokens of each sequence: so many rows of the first, then as many as may be, but at least one of each."""
    left, most = limits.step_tokens, min(rows, limits.model_tokens_max)
    for behind in reversed(range(limits.sequences_max)):
        yield (length := min(left - behind, most))
        left, most = left - length, limits.model_tokens_max


def _chunk(index: int, length: int, *, start: int, blocks: list[int], groups: int) -> Chunk:
    return Chunk(
        request_id=RequestId(f"workspace {index}"),
        tokens=(TokenId(0),) * length,
        start=start,
        runs=(BlockRun(first=0, blocks=tuple(map(BlockId, blocks))),) * groups,
        draw=DrawSpec(sampling=Sampling(temperature=0) if index else _COSTLIEST, uniform=0.0),
    )
