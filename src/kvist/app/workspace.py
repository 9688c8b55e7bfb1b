"""How much memory a full step takes beyond weights and KV: measured, by computing one."""

from collections.abc import Callable

from kvist.app.memory import bytes_peak, bytes_resident, start_peak
from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.base.units import Bytes
from kvist.engine.backend import Backend
from kvist.engine.batch import BlockRun, Chunk, DrawSpec
from kvist.engine.request import Sampling
from kvist.planner.budget import KvLimits


def measure_workspace(make_backend: Callable[[int], Backend], limits: KvLimits, *, groups: int) -> Bytes:
    """Computes the last full step of the longest sequence and returns the bytes it took at its peak.

    The context before the step is made of one block that is read over and over: what a long context costs in
    gathered keys and masks shows, and no pool of that length is needed.

    Args:
        make_backend: makes a backend whose pools have this many blocks; it is dropped when the step is done.
        limits: lengths of a step and of a sequence.
        groups: number of KV groups.
    """
    size = limits.block_tokens
    blocks = min(limits.step_tokens, limits.model_tokens_max) // size + 1
    tokens = min(blocks * size, limits.model_tokens_max)
    context = (limits.model_tokens_max - tokens) // size
    backend = make_backend(blocks + 1)
    chunk = Chunk(
        request_id=RequestId("workspace"),
        tokens=tuple(TokenId(0) for _ in range(tokens)),
        start=context * size,
        runs=(BlockRun(first=0, blocks=(*(BlockId(0),) * context, *map(BlockId, range(1, blocks + 1)))),) * groups,
        draw=DrawSpec(sampling=Sampling(temperature=0), uniform=0.0),
    )
    before = bytes_resident()
    start_peak()
    backend.run((chunk,))
    return Bytes(max(0, bytes_peak() - before))
