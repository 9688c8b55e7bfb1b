"""What one sequence computes reaches no other: not in the same step, nor later through memory that steps share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.torch_backend import TorchBackend
from kvist.engine.batch import BlockRun, Chunk, DrawSpec, batch_of
from kvist.engine.request import Sampling
from tiny_engine import CPU, Subject, subject

SIZE = 16
BROKEN = 299
"""The token whose embedding is no number."""

LENGTHS = [(1, 1, 1), (3, 5, 2), (14, 1, 1), (20, 1, 40), (5, 40, 1), (50, 3, 20)]
"""Tokens of the broken sequence, and of two others: run by one program, by kernels in turn, and by products."""


class World:
    """Three sequences over blocks of their own, the first two of which have a past."""

    def __init__(self, tested: Subject, lengths: Sequence[int]) -> None:
        self.groups = tested.geometry.groups
        store = KvStore(self.groups, [32] * len(self.groups), block_tokens=SIZE, dtype=tested.dtype, device=CPU)
        self.backend = TorchBackend(tested.served, store, tested.lay_out(store))
        generator = torch.Generator().manual_seed(1)
        pasts = (20, 33, 0)
        texts = [
            torch.randint(3, 290, (past + new,), generator=generator).tolist()
            for past, new in zip(pasts, lengths, strict=True)
        ]
        before = [self.chunk(index, texts[index][: pasts[index]], 0) for index in (0, 1)]
        self.backend.logits(batch_of(before, block_tokens=SIZE))
        texts[0][20 + lengths[0] // 2] = BROKEN
        self.chunks = [
            self.chunk(index, text[past:], past) for index, (text, past) in enumerate(zip(texts, pasts, strict=True))
        ]

    def chunk(self, index: int, tokens: Sequence[int], start: int) -> Chunk:
        blocks = tuple(BlockId(index * 8 + each) for each in (5, 2, 7, 0, 3, 1, 6, 4))
        return Chunk(
            request_id=RequestId(f"{index}"),
            tokens=tuple(map(TokenId, tokens)),
            start=start,
            runs=(BlockRun(first=0, blocks=blocks),) * len(self.groups),
            draw=DrawSpec(Sampling(temperature=0), 0.0),
        )

    def logits(self) -> torch.Tensor:
        return self.backend.logits(batch_of(self.chunks, block_tokens=SIZE)).clone()


@contextmanager
def embedded(tested: Subject, value: float) -> Iterator[None]:
    """Has the broken token mean this, and nothing else afterwards."""
    weight = tested.served.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    before = weight.data[BROKEN].clone()
    weight.data[BROKEN] = value
    try:
        yield
    finally:
        weight.data[BROKEN] = before


@pytest.mark.parametrize("name", ["llama-gqa3", "gemma3", "phi3-partial", "smollm3-window"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_sequence_that_is_not_numbers_changes_no_other(name: str, value: float, lengths: Sequence[int]) -> None:
    tested = subject(name)
    world = World(tested, lengths)
    sound = world.logits()
    with embedded(tested, value):
        broken = world.logits()
    assert sound.isfinite().all()
    assert not broken[0].isfinite().all()
    assert torch.equal(broken[1:], sound[1:])
    assert torch.equal(world.logits(), sound)
