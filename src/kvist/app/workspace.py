"""How much memory a full step takes beyond weights and KV: measured, by computing one."""

from collections.abc import Callable

from kvist.app.memory import bytes_peak, bytes_resident, start_peak
from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.base.units import Bytes
from kvist.engine.backend import Backend
from kvist.engine.batch import BlockRun, Chunk, DrawSpec
from kvist.engine.request import Sampling
from kvist.planner.budget import KvLimits

_COSTLIEST = Sampling(top_p=0.5, logprobs=0)
"""Sorts the whole vocabulary; rows are drawn one after the other, so one of this kind shows the most."""


def measure_workspace(make_backend: Callable[[int], Backend], limits: KvLimits, *, groups: int) -> Bytes:
    """Computes a step as full as can be and returns the bytes it took at its peak.

    It ends the longest sequence and decodes all others: the one shows what long contexts and many tokens cost, the
    others what their logits do. The context before the step is one block that is read over and over, and the others
    share another, so that no large pool is needed.

    Args:
        make_backend: makes a backend whose pools have this many blocks; it is dropped when the step is done.
        limits: lengths of a step and of a sequence.
        groups: number of KV groups.
    """
    size, others = limits.block_tokens, limits.sequences_max - 1
    tokens = min(limits.step_tokens - others, limits.model_tokens_max)
    context = (limits.model_tokens_max - tokens) // size
    written = -(-tokens // size)
    backend = make_backend(2 + written)
    longest = Chunk(
        request_id=RequestId("longest"),
        tokens=(TokenId(0),) * tokens,
        start=context * size,
        runs=(BlockRun(first=0, blocks=(*(BlockId(0),) * context, *map(BlockId, range(2, 2 + written)))),) * groups,
        draw=DrawSpec(sampling=_COSTLIEST, uniform=0.0),
    )
    decodes = (
        Chunk(
            request_id=RequestId(f"other {index}"),
            tokens=(TokenId(0),),
            start=0,
            runs=(BlockRun(first=0, blocks=(BlockId(1),)),) * groups,
            draw=DrawSpec(sampling=Sampling(temperature=0), uniform=0.0),
        )
        for index in range(others)
    )
    batch = (longest, *decodes)
    before = bytes_resident()
    start_peak()
    backend.run(batch)
    return Bytes(max(0, bytes_peak() - before))
