"""What a step does, counted: calls into torch, kernels, Python functions, bytes allocated, weights read.

Times differ from machine to machine and from run to run; these counts do not. They guard what made steps fast: a layer
that falls back to transformers' own, a copy between kernels, a tensor that grows with the context, weights that are
read twice, Python work for each request where nothing changed. A count that goes up needs a reason, and the ceiling
here is then raised with it; one that goes down should lower it.
"""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from kvist.app.engine import read_geometry
from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.engine.backends.cpu import kernel
from kvist.engine.backends.cpu.kernel import Kernel, Program
from kvist.engine.backends.cpu.products import project
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.loading import load_model
from kvist.engine.backends.torch_backend import TorchBackend
from kvist.engine.batch import Batch, BlockRun, Chunk, DrawSpec, batch_of
from kvist.engine.request import Sampling
from tiny_directory import write_tiny_directory
from tiny_engine import CPU, one_thread

pytestmark = pytest.mark.slow  # kernels are compiled

BLOCK_TOKENS = 16
BLOCKS = 40
"""Of one sequence: 640 tokens, more than the tiny models have positions."""

SEQUENCES = 8
ROWS = 128
"""Of a prefill step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What a step of the tiny model, which has four layers, may do at most; see `Counts`."""

    operators: int
    kernels: int
    teams: int
    functions: int


# Kernels and calls of threads exactly; the others a few per cent above, so that a release of transformers is no alarm.
DECODE = Ceiling(operators=58, kernels=43, teams=4, functions=430)
PREFILL = Ceiling(operators=365, kernels=35, teams=35, functions=850)
PREFILL_LATER = Ceiling(operators=510, kernels=51, teams=51, functions=890)
OPERATORS_OF_DRAW, FUNCTIONS_OF_DRAW = 2, 6
NUMBERS_OF_ROW = 1450
"""Allocated in a layer of a prefill for each row: what lies between kernels, 20 times the row itself."""


@dataclass(slots=True)
class Counts:
    """What one step did.

    Attributes:
        operators: of torch, by name.
        bytes_allocated: in results that are no view of what an operator was given.
        kernels: run one by one or as part of a program; teams: how often threads were called together for them.
        functions: of Python that were entered.
        weights: of products, in their order.
    """

    operators: Counter[str] = field(default_factory=Counter)
    bytes_allocated: int = 0
    kernels: int = 0
    teams: int = 0
    functions: int = 0
    weights: list[torch.Tensor] = field(default_factory=list)


class Operators(TorchDispatchMode):
    """Counts torch's operators, and the bytes of results that are no view of what went in."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self._counts.operators[str(function)] += 1
        known = {each.untyped_storage().data_ptr() for each in _tensors([args, kwargs])}
        for each in _tensors(result):
            if each.untyped_storage().data_ptr() not in known:
                self._counts.bytes_allocated += each.untyped_storage().nbytes()
        return result


class Calls:
    """Counts Python's calls, and among them kernels and products with their weights; knows programs from their making.

    A kernel that is added to a program is run when the program is, perhaps in many steps: whose weight it reads is
    noted as it is added.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._weights: dict[int, torch.Tensor] = {}

    def __enter__(self) -> "Calls":
        self.counts = Counts()
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        self.counts.functions += 1
        if frame.f_code is Program.add.__code__:
            weight = _weight_of(frame)
            if weight is not None:
                self._weights[frame.f_locals["given"].buffer_info()[0]] = weight
        elif frame.f_code is kernel.run.__code__:
            for program in frame.f_locals["programs"]:
                self.counts.kernels += len(program.table) // 2
                self.counts.weights += [self._weights[given] for given in program.table[1::2] if given in self._weights]
        elif frame.f_code is Kernel.__call__.__code__ and frame.f_locals["program"] is None:
            self.counts.teams += 1
            if frame.f_locals["self"] is not kernel._IN_TURN:
                self.counts.kernels += 1
        elif frame.f_code is project.__code__ and frame.f_locals["program"] is None:
            self.counts.weights.append(frame.f_locals["weight"])


def _weight_of(frame: FrameType | None) -> torch.Tensor | None:
    """The weight of the product that a kernel is added for, if it is one's."""
    while frame is not None and frame.f_code is not project.__code__:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["weight"]


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """All tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def chunk(sequence: int, start: int, tokens: int) -> Chunk:
    """Tokens of a sequence that lies by itself in the pool."""
    count = -(-(start + tokens) // BLOCK_TOKENS)
    return Chunk(
        request_id=RequestId(str(sequence)),
        tokens=tuple(TokenId(3 + each % 200) for each in range(start, start + tokens)),
        start=start,
        runs=(BlockRun(first=0, blocks=tuple(BlockId(sequence * BLOCKS + each) for each in range(count))),),
        draw=DrawSpec(sampling=Sampling(temperature=0), uniform=0.5),
    )


def step(*chunks: Chunk) -> Batch:
    """A batch of one step."""
    return batch_of(chunks, block_tokens=BLOCK_TOKENS)


class Counted:
    """A backend over a tiny model, whose steps are counted once they have warmed up."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        directory = write_tiny_directory(folder, "llama-gqa3", dtype=dtype)
        geometry = read_geometry(directory)
        self.model = load_model(directory, geometry, dtype=dtype, device=CPU)
        self.layers = len(geometry.groups[0].layers)
        self.store = KvStore(geometry.groups, [BLOCKS * SEQUENCES], block_tokens=BLOCK_TOKENS, dtype=dtype, device=CPU)
        self._backend = TorchBackend(self.model, self.store)
        self._calls = Calls()

    def count(self, make: Callable[[], Batch]) -> Counts:
        """Counts one step after two like it; operators and calls apart, because each would see the other."""
        for _ in range(2):
            with self._calls:
                self._backend.run(make())
        batch = make()
        with self._calls:
            self._backend.run(batch)
        found, batch = self._calls.counts, make()
        with Operators(found):
            self._backend.run(batch)
        return found


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    with one_thread():
        yield Counted(tmp_path_factory.mktemp("model"), torch.bfloat16)


def decode(contexts: Sequence[int]) -> Callable[[], Batch]:
    """One more token after each context."""
    return lambda: step(*(chunk(sequence, length, 1) for sequence, length in enumerate(contexts)))


def test_a_decode_step_reads_each_weight_once(counted: Counted) -> None:
    embedding = counted.model.get_input_embeddings().weight
    head = counted.model.get_output_embeddings().weight
    matrices = {each.data_ptr(): each for each in counted.model.parameters() if each.dim() == 2}
    expected = {pointer for pointer, each in matrices.items() if each is not embedding or head is embedding}
    for contexts in ([40], [40] * SEQUENCES):
        read = [weight.data_ptr() for weight in counted.count(decode(contexts)).weights]
        assert len(read) == len(expected) == 4 * counted.layers + 1
        assert set(read) == expected


def test_a_decode_step_calls_few_kernels_and_torch_only_around_the_layers(counted: Counted) -> None:
    for contexts in ([40], [40] * SEQUENCES):
        found = counted.count(decode(contexts))
        assert found.kernels <= DECODE.kernels, found.kernels
        assert found.teams <= DECODE.teams, found.teams
        assert found.operators.total() <= DECODE.operators, found.operators
        assert found.functions <= DECODE.functions, found.functions


def test_nothing_of_a_decode_step_grows_with_the_context(counted: Counted) -> None:
    short, long = counted.count(decode([20])), counted.count(decode([500]))
    assert long.operators == short.operators
    assert long.bytes_allocated == short.bytes_allocated
    assert long.teams == short.teams
    assert (long.kernels, long.functions) == (short.kernels, short.functions)


def test_a_decode_step_of_many_does_in_python_what_one_of_one_does(counted: Counted) -> None:
    one, many = counted.count(decode([40])), counted.count(decode([40] * SEQUENCES))
    assert (many.kernels, many.teams) == (one.kernels, one.teams)
    assert many.operators.total() <= one.operators.total() + OPERATORS_OF_DRAW * (SEQUENCES - 1)
    assert many.functions <= one.functions + FUNCTIONS_OF_DRAW * (SEQUENCES - 1)


def test_a_prefill_step_allocates_for_its_rows_and_neither_for_pairs_nor_for_the_context(counted: Counted) -> None:
    first, later = (counted.count(lambda start=start: step(chunk(0, start, ROWS))) for start in (0, 320))
    assert later.bytes_allocated == first.bytes_allocated
    numbers = first.bytes_allocated / counted.store.dtype.itemsize / ROWS / counted.layers
    assert numbers <= NUMBERS_OF_ROW, numbers
    for found, most in ((first, PREFILL), (later, PREFILL_LATER)):
        assert found.kernels <= most.kernels, found.kernels
        assert found.operators.total() <= most.operators, found.operators
        assert found.functions <= most.functions, found.functions


def test_a_prefill_step_reads_each_weight_once(counted: Counted) -> None:
    read = [weight.data_ptr() for weight in counted.count(lambda: step(chunk(0, 0, ROWS))).weights]
    assert len(read) == len(set(read)) == 4 * counted.layers + 1


def test_a_product_of_one_row_is_faster_than_torchs() -> None:
    """The one test of times: in turn, the median of the ratios, and far below the two to three that are measured."""
    weight = torch.ones(8192, 1024, dtype=torch.bfloat16)
    row, ratios = torch.ones(1, 1024, dtype=torch.bfloat16), []
    with one_thread():
        for turn in range(18):
            times_s = []
            for compute in (lambda: project(row, weight), lambda: functional.linear(row, weight)):
                begun_s = time.perf_counter()
                compute()
                times_s.append(time.perf_counter() - begun_s)
            ratios += [times_s[1] / times_s[0]] if turn > 2 else []
    assert statistics.median(ratios) >= 1.2, ratios
