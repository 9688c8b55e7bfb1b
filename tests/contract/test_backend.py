"""What the engine may rely on from each `Backend` of `kvist.engine.backend`, wherever blocks lie and whoever is beside.

An implementation joins by one entry in BACKENDS: a class that makes it with two KV groups, one of which looks back
WINDOW tokens only, and can make its next run fail.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from fakes.backend import MemoryBackend, Truth
from kvist.base.errors import CapacityError
from kvist.base.ids import BlockId, RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.engine.backend import Backend, BackendError
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.torch_backend import TorchBackend
from kvist.engine.batch import Batch, BlockRun, Chunk, Drawn, DrawSpec, batch_of
from kvist.engine.form import form_of
from kvist.engine.request import Request, Sampling
from tiny_engine import one_thread, subject

SIZE, BLOCKS, WINDOW, VOCAB = 16, 24, 32, 307
GREEDY = DrawSpec(sampling=Sampling(temperature=0), uniform=0.0)


class MemoryTrial:
    """The backend of plain lists, which must know the true tokens of each request."""

    def __init__(self) -> None:
        self.payload_bytes = [8 * SIZE] * 2
        self._truth = Truth()
        self._backend = MemoryBackend([BLOCKS] * 2, [None, WINDOW], block_tokens=SIZE, vocab=VOCAB, truth=self._truth)
        self.backend: Backend = self._backend

    def know(self, name: str, tokens: Sequence[int]) -> None:
        request = Request(
            id=RequestId(name),
            tenant=TenantId("blue"),
            prompt=tuple(map(TokenId, tokens)),
            output_tokens_max=Tokens(1),
            sampling=Sampling(),
            stop_tokens=frozenset(),
        )
        self._truth.add(request)

    @contextmanager
    def failing(self, family: type[CapacityError | BackendError]) -> Iterator[None]:
        self._backend.fault = family("told to")
        yield


class TorchTrial:
    """A tiny Gemma 3, whose last layer can be made to fail as torch does."""

    kernels = True

    def __init__(self) -> None:
        tested = subject("gemma3", kernels=self.kernels)
        assert [group.window for group in tested.geometry.groups] == [None, WINDOW]
        store = KvStore(
            tested.geometry.groups,
            [BLOCKS] * 2,
            block_tokens=SIZE,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        self.backend: Backend = TorchBackend(tested.served, store, tested.lay_out(store))
        self.payload_bytes = [form_of(group, "float32", SIZE).payload_bytes for group in tested.geometry.groups]
        self._last_layer = tested.served.get_decoder().layers[-1]

    def know(self, name: str, tokens: Sequence[int]) -> None:
        """Its model needs not be told."""

    @contextmanager
    def failing(self, family: type[CapacityError | BackendError]) -> Iterator[None]:
        def fail(*_: object) -> None:
            raise MemoryError if family is CapacityError else RuntimeError("told to")

        handle = self._last_layer.register_forward_pre_hook(fail)
        try:
            yield
        finally:
            handle.remove()


class WithoutKernelsTrial(TorchTrial):
    """The same on devices that have none."""

    kernels = False


Trial = MemoryTrial | TorchTrial
BACKENDS: dict[str, type[Trial]] = {
    "MemoryBackend": MemoryTrial,
    "TorchBackend": TorchTrial,
    "TorchBackend without kernels": WithoutKernelsTrial,
}


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[], Trial]]:
    """Makes a backend of each kind, its pool empty."""
    with one_thread():
        yield BACKENDS[request.param]


def text(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 300, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def chunk(name: str, tokens: Sequence[int], blocks: Sequence[int], *, start: int = 0, last: bool = True) -> Chunk:
    """Tokens from `start` on; both groups use the same block numbers, the window group those that it still reads."""
    end = start + len(tokens)
    held = tuple(map(BlockId, blocks[: -(-end // SIZE)]))
    passed = max(0, start - WINDOW + 1) // SIZE
    return Chunk(
        request_id=RequestId(name),
        tokens=tuple(map(TokenId, tokens)),
        start=start,
        runs=(BlockRun(first=0, blocks=held), BlockRun(first=passed, blocks=held[passed:])),
        draw=GREEDY if last else None,
    )


def of(*chunks: Chunk) -> Batch:
    return batch_of(chunks, block_tokens=SIZE)


def alone(make: Callable[[], Trial], tokens: Sequence[int]) -> TokenId:
    """What follows a text that is computed in one chunk and in order."""
    trial = make()
    trial.know("alone", tokens)
    return token_of(trial.backend.run(of(chunk("alone", tokens, range(BLOCKS)))))


def token_of(found: Sequence[Drawn | None]) -> TokenId:
    (only,) = found
    assert only is not None
    return only.token


class TestBackend:
    def test_one_entry_per_chunk_in_order_and_none_where_nothing_is_drawn(self, make: Callable[[], Trial]) -> None:
        trial, texts = make(), [text(5, 1), text(40, 2), text(17, 3), text(1, 4)]
        for index, tokens in enumerate(texts):
            trial.know(f"{index}", tokens)
        found = trial.backend.run(
            of(
                chunk("0", texts[0], [0]),
                chunk("1", texts[1][:33], [1, 2, 3], last=False),
                chunk("2", texts[2], [4, 5]),
                chunk("3", texts[3], [6]),
            )
        )
        assert [each is None for each in found] == [False, True, False, False]
        assert [each.token for each in found if each] == [alone(make, texts[index]) for index in (0, 2, 3)]

    @pytest.mark.parametrize("cuts", [[16], [1], [15, 17], [32, 64], [10, 20, 30, 40, 50, 60, 70], list(range(1, 80))])
    def test_a_text_in_parts_is_the_same_text(self, make: Callable[[], Trial], cuts: list[int]) -> None:
        trial, tokens = make(), text(80)
        trial.know("a", tokens)
        for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
            last = end == len(tokens)
            found = trial.backend.run(of(chunk("a", tokens[start:end], range(BLOCKS), start=start, last=last)))
        assert token_of(found) == alone(make, tokens)

    @pytest.mark.parametrize("blocks", [[9, 8, 7, 6, 5], [20, 3, 11, 4, 23], [5, 6, 7, 1, 2]])
    def test_it_is_the_same_wherever_its_blocks_lie(self, make: Callable[[], Trial], blocks: list[int]) -> None:
        trial, tokens = make(), text(75)
        trial.know("a", tokens)
        trial.backend.run(of(chunk("a", tokens[:50], blocks, last=False)))
        assert token_of(trial.backend.run(of(chunk("a", tokens[50:], blocks, start=50)))) == alone(make, tokens)

    def test_others_beside_it_change_nothing(self, make: Callable[[], Trial]) -> None:
        trial, texts = make(), [text(60, seed) for seed in range(4)]
        for index, tokens in enumerate(texts):
            trial.know(f"{index}", tokens)
        places = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
        trial.backend.run(of(*(chunk(f"{i}", texts[i][:20], places[i], last=False) for i in range(3))))
        trial.backend.run(of(*(chunk(f"{i}", texts[i][20:59], places[i], start=20, last=False) for i in (2, 0, 1))))
        found = trial.backend.run(
            of(*(chunk(f"{i}", texts[i][59:], places[i], start=59) for i in range(3)), chunk("3", texts[3], places[3]))
        )
        assert [each.token for each in found if each] == [alone(make, tokens) for tokens in texts]

    def test_what_one_wrote_another_may_read(self, make: Callable[[], Trial]) -> None:
        trial, common = make(), text(48)
        first, second = [*common, *text(3, 1)], [*common, *text(7, 2)]
        for name, tokens in (("first", first), ("second", second)):
            trial.know(name, tokens)
        trial.backend.run(of(chunk("first", first, [0, 1, 2, 3])))
        found = trial.backend.run(of(chunk("second", second[48:], [0, 1, 2, 9], start=48)))
        assert token_of(found) == alone(make, second)

    def test_a_block_given_to_another_is_the_other_s(self, make: Callable[[], Trial]) -> None:
        trial, old, new = make(), text(60, 1), text(50, 2)
        for name, tokens in (("old", old), ("new", new)):
            trial.know(name, tokens)
        trial.backend.run(of(chunk("old", old, [3, 2, 1, 0])))
        assert token_of(trial.backend.run(of(chunk("new", new, [0, 1, 2, 3])))) == alone(make, new)

    def test_an_answer_goes_on_token_by_token(self, make: Callable[[], Trial]) -> None:
        trial, tokens = make(), text(30)
        trial.know("a", tokens)
        places, computed = [7, 0, 13, 2], 0
        for _ in range(20):
            found = trial.backend.run(of(chunk("a", tokens[computed:], places, start=computed)))
            assert token_of(found) == alone(make, tokens)
            computed, tokens = len(tokens), [*tokens, token_of(found)]

    @pytest.mark.parametrize("family", [CapacityError, BackendError])
    def test_a_failure_is_ours_and_spoils_nothing_but_its_own_batch(
        self, make: Callable[[], Trial], family: type[CapacityError | BackendError]
    ) -> None:
        trial, kept, lost = make(), text(40, 1), text(40, 2)
        for name, tokens in (("kept", kept), ("lost", lost)):
            trial.know(name, tokens)
        trial.backend.run(of(chunk("kept", kept[:39], [5, 1, 3], last=False)))
        with trial.failing(family), pytest.raises(family):
            trial.backend.run(of(chunk("lost", lost, [0, 2, 4])))
        assert token_of(trial.backend.run(of(chunk("kept", kept[39:], [5, 1, 3], start=39)))) == alone(make, kept)
        assert token_of(trial.backend.run(of(chunk("lost", lost, [0, 2, 4])))) == alone(make, lost)

    def test_a_copy_of_its_blocks_continues_in_its_place(self, make: Callable[[], Trial]) -> None:
        trial, tokens, other = make(), text(75), text(64, 5)
        for name, each in (("a", tokens), ("b", tokens), ("other", other)):
            trial.know(name, each)
        trial.backend.run(of(chunk("a", tokens[:64], [0, 1, 2, 3], last=False)))
        payloads = copied_out(trial, [0, 1, 2, 3])
        trial.backend.run(of(chunk("other", other, [3, 2, 1, 0])))  # what was copied is no view
        for group in range(2):
            sources = [memoryview(bytes(payload)).toreadonly() for payload in payloads[group]]
            trial.backend.copy_in(group, places([9, 4, 20, 7]), sources)
        found = trial.backend.run(of(chunk("b", tokens[64:], [9, 4, 20, 7, 8], start=64)))
        assert token_of(found) == alone(make, tokens)

    def test_copies_are_bit_for_bit_and_touch_no_neighbour(self, make: Callable[[], Trial]) -> None:
        trial, tokens = make(), text(SIZE * 8)
        trial.know("a", tokens)
        trial.backend.run(of(chunk("a", tokens, range(8))))
        before = copied_out(trial, range(8))
        for group in range(2):
            trial.backend.copy_in(group, places([5, 2]), [memoryview(before[group][block]) for block in (2, 5)])
        after = copied_out(trial, range(8))
        for group in range(2):
            assert after[group] == [before[group][block] for block in (0, 1, 5, 3, 4, 2, 6, 7)]
            assert len({bytes(payload) for payload in after[group]}) == 8

    def test_copying_no_block_is_nothing(self, make: Callable[[], Trial]) -> None:
        trial, tokens = make(), text(SIZE)
        trial.know("a", tokens)
        trial.backend.run(of(chunk("a", tokens, [0])))
        before = copied_out(trial, [0])
        trial.backend.copy_out(0, (), ())
        trial.backend.copy_in(1, (), ())
        assert copied_out(trial, [0]) == before


def places(blocks: Sequence[int]) -> list[BlockId]:
    return list(map(BlockId, blocks))


def copied_out(trial: Trial, blocks: Sequence[int]) -> list[list[bytearray]]:
    """The payload of each block, by group."""
    found = []
    for group, size in enumerate(trial.payload_bytes):
        buffers = [bytearray(size) for _ in blocks]
        trial.backend.copy_out(group, places(blocks), list(map(memoryview, buffers)))
        found.append(buffers)
    return found
