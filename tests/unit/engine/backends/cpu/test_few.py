"""Attention of few rows over scattered blocks, against its definition in float64."""

import numpy as np
import pytest
import torch

from kvist.engine.backends.cpu.few import Pool, Readers, Scratch, attend_few
from kvist.engine.backends.cpu.reads import TILE_TOKENS
from kvist.engine.backends.cpu.segments import ROWS_MAX, Reading, plan
from kvist.engine.backends.tiles import AttentionRule

BLOCKS = 120
TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 2e-2}


class Case:
    """Sequences in a pool in which all that is not theirs is no number."""

    def __init__(self, shape: tuple[int, int, int, int], size: int, dtype: torch.dtype) -> None:
        """Takes KV heads, heads per KV head, and widths of K and V; tokens of a block."""
        kv_heads, self.per, width_k, width_v = shape
        self.size, self.dtype = size, dtype
        self.keys = torch.full((kv_heads, BLOCKS * size, width_k), float("nan"), dtype=dtype)
        self.values = torch.full((kv_heads, BLOCKS * size, width_v), float("nan"), dtype=dtype)
        self.generator = torch.Generator().manual_seed(3)
        self.dice = np.random.default_rng(3)
        self.free = self.dice.permutation(BLOCKS).tolist()
        self.tables: list[list[int]] = []
        self.starts: list[int] = []
        self.rows: list[int] = []
        self.apart: tuple[int, int] | None = None

    def add(self, start: int, rows: int, *, shared: int = 0) -> None:
        """A sequence that begins with some blocks of the one before."""
        own = -(-(start + rows) // self.size) - shared
        table = (self.tables[-1][:shared] if shared else []) + [self.free.pop() for _ in range(own)]
        for position in range(shared * self.size, start + rows):
            at = self.place(table, position)
            for pool in (self.keys, self.values):
                pool[:, at] = torch.randn(pool.shape[0], pool.shape[2], generator=self.generator).to(self.dtype)
        self.tables.append(table)
        self.starts.append(start)
        self.rows.append(rows)

    def place(self, table: list[int], position: int) -> int:
        return table[position // self.size] * self.size + position % self.size

    def queries(self) -> torch.Tensor:
        shape = (sum(self.rows), self.keys.shape[0] * self.per, self.keys.shape[2])
        return torch.randn(*shape, generator=self.generator).to(self.dtype)

    def attend(self, query: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
        given = Reading(
            tables=np.array([block for table in self.tables for block in table], np.int64),
            offsets=np.cumsum([0, *(len(table) for table in self.tables[:-1])]),
            firsts=np.zeros(len(self.rows), np.int64),
            starts=np.array(self.starts),
            rows=np.array(self.rows),
            row=np.cumsum([0, *self.rows[:-1]]),
        )
        out = query.new_full((*query.shape[:2], self.values.shape[2]), float("nan"))
        readers = Readers(plan(given, block_tokens=self.size, window=rule.window), Scratch())
        pool = Pool(keys=self.keys, values=self.values, block_tokens=self.size, apart=self.apart)
        attend_few(query, pool, readers, rule, out)
        return out

    def expected(self, query: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
        found, row = [], 0
        for table, start, rows in zip(self.tables, self.starts, self.rows, strict=True):
            places = torch.tensor([self.place(table, position) for position in range(start + rows)])
            keys, values = (
                pool[:, places].double().repeat_interleave(self.per, 0) for pool in (self.keys, self.values)
            )
            asked = query[row : row + rows].double().transpose(0, 1)
            scores = asked @ keys.transpose(1, 2) * rule.scaling
            if rule.softcap is not None:
                scores = rule.softcap * torch.tanh(scores / rule.softcap)
            stands, looks = torch.arange(start, start + rows)[:, None], torch.arange(start + rows)[None, :]
            hidden = (looks > stands) | (looks <= stands - (rule.window or start + rows))
            found.append((scores.masked_fill(hidden, float("-inf")).softmax(-1) @ values).transpose(0, 1))
            row += rows
        return torch.cat(found)

    def check(self, rule: AttentionRule) -> None:
        query = self.queries()
        found = self.attend(query, rule).double()
        torch.testing.assert_close(found, self.expected(query, rule), atol=TOLERANCES[self.dtype], rtol=0)


def rule(*, window: int | None = None, softcap: float | None = None, scaling: float = 0.25) -> AttentionRule:
    return AttentionRule(window=window, scaling=scaling, softcap=softcap)


SHAPES = {
    "smollm2": (3, 3, 64, 64),
    "gemma3": (1, 4, 256, 256),
    "qwen2.5": (2, 7, 64, 64),
    "alone": (2, 1, 32, 32),
    "odd": (2, 2, 6, 10),
    "unequal": (2, 5, 48, 80),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_of_several_sequences(
    shape: tuple[int, int, int, int], dtype: torch.dtype, threads: int, torch_threads: object
) -> None:
    assert callable(torch_threads)
    torch_threads(threads)
    case = Case(shape, 16, dtype)
    for start, rows in ((0, 1), (5, 3), (15, 1), (16, 1), (300, 1), (129, ROWS_MAX), (700, 2)):
        case.add(start, rows)
    case.check(rule())


@pytest.mark.parametrize("window", [1, 2, 17, 130, 5000])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_windows_and_caps(window: int, softcap: float | None) -> None:
    case = Case((2, 2, 32, 48), 8, torch.float32)
    for start, rows in ((0, 1), (200, 1), (123, 9), (300, 5)):
        case.add(start, rows)
    case.check(rule(window=window, softcap=softcap))


@pytest.mark.parametrize("size", [1, 4, 64, 2 * TILE_TOKENS])
def test_blocks_of_any_size(size: int) -> None:
    case = Case((2, 2, 16, 16), size, torch.float32)
    for start, rows in ((min(60, 30 * size), 1), (2, 3)):
        case.add(start, rows)
    case.check(rule())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prefix_that_sequences_share(dtype: torch.dtype) -> None:
    case = Case((3, 3, 64, 64), 16, dtype)
    case.add(1000, 1)
    case.add(1005, 1, shared=62)
    case.add(800, 2, shared=45)
    case.add(640, 1, shared=40)
    case.check(rule())


@pytest.mark.parametrize("scaling", [1e-3, 8.0])
def test_scores_near_and_far_from_each_other(scaling: float) -> None:
    case = Case((1, 2, 64, 64), 16, torch.float32)
    case.add(1500, 1)
    case.check(rule(scaling=scaling))


def test_large_scores_stay_numbers() -> None:
    case = Case((1, 2, 64, 64), 16, torch.float32)
    case.add(600, 1)
    query = case.queries() * 1e4
    found = case.attend(query, rule())
    torch.testing.assert_close(found.double(), case.expected(query, rule()), atol=1e-5, rtol=0)


def test_blocks_that_hold_all_heads_side_by_side() -> None:
    case = Case((3, 2, 32, 48), 16, torch.float32)
    case.add(400, 1)
    case.add(30, 4)
    query = case.queries()
    expected = case.attend(query, rule())
    case.keys, case.values = (
        pool.unflatten(1, (BLOCKS, 16)).transpose(0, 1).contiguous().view(pool.shape)
        for pool in (case.keys, case.values)
    )
    case.apart = (16, 3 * 16)
    assert torch.equal(case.attend(query, rule()), expected)


def test_what_is_no_number_stays_none() -> None:
    case = Case((1, 2, 64, 64), 16, torch.float32)
    case.add(600, 1)
    case.keys[0, case.place(case.tables[0], 77)] = float("nan")
    assert case.attend(case.queries(), rule()).isnan().all()


def test_the_same_memory_serves_again() -> None:
    scratch = Scratch()
    first = scratch.take("a", (4, 8))
    assert scratch.take("a", (2, 16)).data_ptr() == first.data_ptr()
    assert scratch.take("b", (4, 8)).data_ptr() != first.data_ptr()
    assert scratch.take("a", (4, 8), torch.bfloat16).dtype == torch.bfloat16
    assert scratch.take("a", (8, 8)).shape == (8, 8)
