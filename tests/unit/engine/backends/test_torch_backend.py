"""Batches of plain data through a real model: what is drawn, where nothing is, and how failures come back."""

from collections.abc import Callable, Iterator

import pytest
import torch

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.engine.backend import BackendError
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.torch_backend import TorchBackend
from kvist.engine.batch import Batch, BlockRun, Chunk, DrawSpec, batch_of
from kvist.engine.request import Sampling
from tiny_engine import one_thread, subject

CPU = torch.device("cpu")
SIZE, BLOCKS = 16, 40
GREEDY = DrawSpec(sampling=Sampling(temperature=0), uniform=0.0)
# One group, two groups, only windows.
NAMES = ("llama", "gemma3", "mistral-window")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def backend_of(name: str, dtype: torch.dtype = torch.float32) -> TorchBackend:
    tested = subject(name, dtype)
    groups = tested.geometry.groups
    store = KvStore(groups, [BLOCKS] * len(groups), block_tokens=SIZE, dtype=dtype, device=CPU)
    return TorchBackend(tested.served, store)


def chunk(
    backend: TorchBackend,
    tokens: list[int],
    blocks: list[int],
    *,
    start: int = 0,
    draw: DrawSpec | None = GREEDY,
) -> Chunk:
    """Tokens of one sequence that has the same block numbers in every group."""
    run = BlockRun(first=0, blocks=tuple(map(BlockId, blocks)))
    return Chunk(
        request_id=RequestId(f"{blocks}"),
        tokens=tuple(map(TokenId, tokens)),
        start=start,
        runs=(run,) * len(backend.store.groups),
        draw=draw,
    )


def of(*chunks: Chunk) -> Batch:
    return batch_of(chunks, block_tokens=SIZE)


def text(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 300, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def expected(name: str, tokens: list[int]) -> torch.Tensor:
    """Last logits of transformers' own model."""
    with torch.inference_mode():
        return subject(name).plain(torch.tensor([tokens]), use_cache=False).logits[0, -1]


@pytest.mark.parametrize("name", NAMES)
def test_one_entry_per_chunk_and_none_where_nothing_was_asked(name: str) -> None:
    backend = backend_of(name)
    one, two, three = text(20, 1), text(33, 2), text(1, 3)
    batch = (
        chunk(backend, one, [0, 1]),
        chunk(backend, two[:-1], [2, 3], draw=None),
        chunk(backend, three, [5]),
    )
    found = backend.run(of(*batch))
    assert [each is None for each in found] == [False, True, False]
    assert [each.token for each in found if each] == [expected(name, one).argmax(), expected(name, three).argmax()]
    (last,) = backend.run(of(chunk(backend, two[-1:], [2, 3, 4], start=32)))
    assert last is not None
    assert last.token == expected(name, two).argmax()


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_that_draws_nothing_still_writes(name: str) -> None:
    backend = backend_of(name)
    tokens = text(40)
    assert backend.run(of(chunk(backend, tokens[:32], [8, 3], draw=None))) == [None]
    logits = backend.logits(of(chunk(backend, tokens[32:], [8, 3, 1], start=32)))
    torch.testing.assert_close(logits[0], expected(name, tokens), atol=1e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_where_blocks_lie_changes_no_bit(name: str, dtype: torch.dtype) -> None:
    backend = backend_of(name, dtype)
    one, two = text(90, 1), text(300, 2)
    results = []
    for first, second in (
        (list(range(6)), list(range(6, 26))),
        ([39, 1, 37, 3, 35, 5], [0, 38, 2, 36, 4, 34, 6, 32, 8, 30, 10, 28, 12, 26, 14, 24, 16, 22, 18, 20]),
    ):
        cold = backend.logits(of(chunk(backend, one[:70], first[:5]), chunk(backend, two[:280], second[:18])))
        warm = backend.logits(
            of(chunk(backend, one[70:], first, start=70), chunk(backend, two[280:], second[:19], start=280))
        )
        blocks = [
            backend.store.read_block(group, BlockId(block))
            for group in range(len(backend.store.groups))
            for block in (*first[:5], *second[:18])
        ]
        results.append((cold, warm, torch.cat([block.flatten() for block in blocks])))
    for together, scattered in zip(*results, strict=True):
        assert torch.equal(together, scattered)


def test_the_order_of_a_batch_changes_nothing_but_the_order() -> None:
    backend = backend_of("gemma3")
    texts = [text(length, length) for length in (3, 50, 17, 1)]
    batch = tuple(
        chunk(backend, tokens, list(range(4 * index, 4 * index + 4))[: -(-len(tokens) // SIZE)])
        for index, tokens in enumerate(texts)
    )
    forward, back = backend.logits(of(*batch)), backend.logits(of(*batch[::-1]))
    torch.testing.assert_close(forward, back.flip(0), atol=1e-3, rtol=0)


def test_other_blocks_are_left_alone() -> None:
    backend = backend_of("gemma3")
    for tensor in (*backend.store.keys, *backend.store.values):
        tensor.fill_(7)
    backend.run(of(chunk(backend, text(20), [4, 9])))
    for group in range(len(backend.store.groups)):
        for block in range(BLOCKS):
            untouched = backend.store.read_block(group, BlockId(block)).eq(7)
            assert untouched.all() == (block not in {4, 9})
        assert backend.store.read_block(group, BlockId(9))[:, :, 4:].eq(7).all(), "beyond the last token"


def failing(backend: TorchBackend, error: BaseException) -> Callable[[], None]:
    """Makes the model's last layer raise; call the answer to mend it."""

    def fail(*_: object) -> None:
        raise error

    return backend._model.get_decoder().layers[-1].register_forward_pre_hook(fail).remove


@pytest.mark.parametrize(
    ("error", "family"),
    [
        (MemoryError(), CapacityError),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), CapacityError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), CapacityError),
        (RuntimeError("shape mismatch"), BackendError),
        (NotImplementedError("no kernel for this dtype"), BackendError),
        (IndexError("index out of range in self"), BackendError),
        (ValueError("bad value"), BackendError),
    ],
    ids=repr,
)
def test_what_torch_raises_becomes_ours_and_the_next_step_works(error: Exception, family: type[Exception]) -> None:
    backend = backend_of("llama")
    tokens = text(20)
    mend = failing(backend, error)
    try:
        with pytest.raises(family) as caught:
            backend.run(of(chunk(backend, tokens, [0, 1])))
    finally:
        mend()
    assert caught.value.__cause__ is error
    assert str(error) in str(caught.value)
    (found,) = backend.run(of(chunk(backend, tokens, [0, 1])))
    assert found is not None
    assert found.token == expected("llama", tokens).argmax()


def test_a_lack_of_memory_says_how_large_the_step_was() -> None:
    backend = backend_of("llama")
    mend = failing(backend, MemoryError())
    try:
        with pytest.raises(CapacityError, match="a step of 23 tokens"):
            backend.run(of(chunk(backend, text(20), [0, 1]), chunk(backend, text(3), [2])))
    finally:
        mend()


def test_what_is_no_failure_of_torch_is_not_hidden() -> None:
    backend = backend_of("llama")
    for error in (KeyboardInterrupt(), AssertionError("ours")):
        mend = failing(backend, error)
        try:
            with pytest.raises(type(error)):
                backend.run(of(chunk(backend, [5], [0])))
        finally:
            mend()


@pytest.mark.parametrize("token", [307, 10**6, -1, 2**40])
def test_a_token_that_the_model_does_not_know_is_an_error_and_no_crash(token: int) -> None:
    backend = backend_of("llama")
    with pytest.raises(BackendError, match="the model failed"):
        backend.run(of(chunk(backend, [5, token, 6], [0])))


def test_a_context_that_is_not_a_number_is_an_error() -> None:
    backend = backend_of("llama")
    backend.store.keys[0].fill_(float("nan"))
    with pytest.raises(BackendError, match="not numbers"):
        backend.run(of(chunk(backend, [5], [0, 1], start=16)))


def test_no_graph_is_kept_of_what_was_computed() -> None:
    backend = backend_of("llama")
    backend.run(of(chunk(backend, text(20), [0, 1])))
    assert not any(tensor.requires_grad for tensor in (*backend.store.keys, *backend.store.values))
