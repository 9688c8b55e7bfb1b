"""A full step is measured by computing one: what it is made of, and that what it takes is what is told."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvist.app.workspace import fullest_batch, measure_workspace, warm_up
from kvist.base.errors import CapacityError
from kvist.base.units import Tokens
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.torch_backend import TorchBackend
from kvist.engine.batch import Batch, Drawn
from kvist.planner.budget import KvLimits
from tiny_engine import subject

MIB = 2**20


def limits(
    *, step_tokens: int = 64, sequences_max: int = 8, model_tokens_max: int = 500, block_tokens: int = 16
) -> KvLimits:
    return KvLimits(
        dtype="float32",
        block_tokens=block_tokens,
        step_tokens=step_tokens,
        sequences_max=sequences_max,
        model_tokens_max=Tokens(model_tokens_max),
        window_checkpoint_tokens=Tokens(4096),
    )


class Hungry:
    """Takes so many bytes while it computes, and gives them back."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.batches: list[Batch] = []

    def run(self, batch: Batch) -> list[Drawn | None]:
        self.batches.append(batch)
        assert len(bytearray(self.size)) == self.size
        return [None for _ in batch]


@given(
    step_tokens=st.integers(1, 300),
    sequences_max=st.integers(1, 20),
    model_tokens_max=st.integers(1, 600),
    block_tokens=st.integers(1, 40),
    rows=st.integers(1, 64),
    groups=st.integers(1, 3),
)
def test_the_step_is_as_full_as_can_be_and_could_happen(
    *, step_tokens, sequences_max, model_tokens_max, block_tokens, rows, groups
) -> None:
    step_tokens = max(step_tokens, sequences_max)
    batch = fullest_batch(
        limits(
            step_tokens=step_tokens,
            sequences_max=sequences_max,
            model_tokens_max=model_tokens_max,
            block_tokens=block_tokens,
        ),
        groups=groups,
        rows=rows,
    )
    chunks = tuple(batch)
    assert len(batch) == len(chunks) == sequences_max
    lengths = [len(chunk.tokens) for chunk in chunks]
    assert min(lengths) >= 1
    most = min(rows, model_tokens_max) + (sequences_max - 1) * model_tokens_max
    assert sum(lengths) == min(step_tokens, most)
    longest = chunks[0].start + lengths[0]
    assert model_tokens_max - block_tokens < longest <= model_tokens_max
    for chunk in chunks:
        assert chunk.draw is not None
        assert len(chunk.runs) == groups
        for run in chunk.runs:
            held = len(run.blocks) * block_tokens
            assert held - block_tokens < chunk.start + len(chunk.tokens) <= held
    used = {block for chunk in chunks for run in chunk.runs for block in run.blocks}
    assert max(used) <= 1 + (step_tokens // block_tokens + 2), "the pool for it is small"
    written = range(chunks[0].start // block_tokens, len(chunks[0].runs[0].blocks))
    own = {chunks[0].runs[0].blocks[index] for index in written}
    assert own.isdisjoint(block for chunk in chunks[1:] for block in chunk.runs[0].blocks)


@pytest.mark.parametrize("size", [0, 48 * MIB])
def test_what_a_step_takes_is_told_though_it_is_given_back(size: int) -> None:
    hungry = Hungry(size)
    measured = measure_workspace(lambda _: hungry, limits(), groups=2, rows=8)
    assert size - 2 * MIB <= measured <= size + 8 * MIB
    assert len(hungry.batches) == 1


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral-window", "gemma2"])
def test_real_models_compute_it(name: str) -> None:
    tested = subject(name)
    groups = tested.geometry.groups
    asked: list[int] = []

    def make(blocks: int) -> TorchBackend:
        asked.append(blocks)
        counts = [blocks] * len(groups)
        store = KvStore(groups, counts, block_tokens=16, dtype=torch.float32, device=torch.device("cpu"))
        return TorchBackend(tested.served, store)

    measured = measure_workspace(make, limits(), groups=len(groups), rows=32)
    assert 0 <= measured < 200 * MIB
    assert len(asked) == 1
    assert asked[0] < 10


@given(
    step_tokens=st.integers(1, 300),
    sequences_max=st.integers(1, 3),
    model_tokens_max=st.integers(1, 600),
    block_tokens=st.integers(1, 40),
    groups=st.integers(1, 3),
)
def test_what_is_computed_first_could_happen_and_has_many_rows_and_few(
    *, step_tokens, sequences_max, model_tokens_max, block_tokens, groups
) -> None:
    asked: list[int] = []
    first = Hungry(0)
    bounds = limits(
        step_tokens=max(step_tokens, sequences_max),
        sequences_max=sequences_max,
        model_tokens_max=model_tokens_max,
        block_tokens=block_tokens,
    )
    warm_up(lambda blocks: asked.append(blocks) or first, bounds, groups=groups)
    many, few = (list(batch) for batch in first.batches)
    assert len(many) == 1
    assert len(many[0].tokens) == min(bounds.step_tokens, model_tokens_max, 160)
    assert [len(chunk.tokens) for chunk in few] == [1] * min(2, sequences_max)
    for chunk in (*many, *few):
        assert chunk.start + len(chunk.tokens) <= model_tokens_max
        assert len(chunk.runs) == groups
        for run in chunk.runs:
            assert len(run.blocks) == -(-(chunk.start + len(chunk.tokens)) // block_tokens)
            assert set(run.blocks) <= set(range(*asked))


def test_a_step_that_does_not_fit_says_so() -> None:
    class Full:
        def run(self, batch: Batch) -> list[Drawn | None]:
            raise CapacityError(f"a step of {sum(len(chunk.tokens) for chunk in batch)} tokens: no memory")

    with pytest.raises(CapacityError, match="a step of 64 tokens"):
        measure_workspace(lambda _: Full(), limits(), groups=1, rows=8)
