"""Attention of many rows against float64, where tiles, pieces and windows begin and end, and what it holds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.engine.backends.cpu.many import COLUMNS, COLUMNS_QUANTUM, ManyRows, pieces_of, tiles_of
from kvist.engine.backends.tiles import AttentionRule

MANY = ManyRows()
"""One for all cases: what earlier calls left in the scratch must not matter."""

SHAPES = {
    "three heads for each of three": (9, 3, 64, 64),
    "one KV head": (4, 1, 32, 16),
    "each its own": (5, 5, 16, 24),
}


def rule_of(*, window: int | None = None, softcap: float | None = None) -> AttentionRule:
    return AttentionRule(window=window, scaling=0.125, softcap=softcap)


def expected(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
    """Attention as it is defined, in float64."""
    per, rows, columns = query.shape[1] // keys.shape[0], query.shape[0], keys.shape[1]
    keys, values = (each.double().repeat_interleave(per, 0) for each in (keys, values))
    scores = torch.einsum("rhd,hcd->hrc", query.double(), keys) * rule.scaling
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    behind = torch.arange(columns - rows, columns).unsqueeze(1) - torch.arange(columns)
    hidden = (behind < 0) | (behind >= (rule.window or columns))
    return torch.einsum("hrc,hcd->rhd", scores.masked_fill(hidden, -math.inf).softmax(-1), values)


def inputs(shape: str, rows: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads, kv_heads, width_k, width_v = SHAPES[shape]
    generator = torch.Generator().manual_seed(rows * columns)
    return (
        torch.randn(rows, heads, width_k, generator=generator).to(dtype),
        torch.randn(kv_heads, columns, width_k, generator=generator).to(dtype),
        torch.randn(kv_heads, columns, width_v, generator=generator).to(dtype),
    )


def attended(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
    out = query.new_full((*query.shape[:2], values.shape[2]), math.nan)
    MANY.attend(query, keys, values, rule, out)
    return out


def error_of(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-6), (torch.bfloat16, 6e-3)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [(17, 17), (64, 300), (300, 1300), (70, COLUMNS + 330), (256, 512)])
@pytest.mark.parametrize("rule", [rule_of(), rule_of(window=100), rule_of(softcap=2.0)], ids=repr)
def test_attention_is_that_of_float64(
    shape: str, size: tuple[int, int], rule: AttentionRule, dtype: torch.dtype, error: float
) -> None:
    query, keys, values = inputs(shape, *size, dtype)
    found = attended(query, keys, values, rule)
    assert found.dtype == dtype
    assert error_of(found, expected(query, keys, values, rule)) < error


def test_scores_far_apart_and_far_from_zero_are_no_trouble() -> None:
    query, keys, values = inputs("one KV head", 40, 600, torch.float32)
    query, rule = query * 1000, rule_of()
    assert error_of(attended(query, keys, values, rule), expected(query, keys, values, rule)) < 2e-5


def test_a_window_of_one_sees_only_itself() -> None:
    query, keys, values = inputs("each its own", 100, 700, torch.bfloat16)
    found = attended(query, keys, values, rule_of(window=1))
    assert torch.equal(found, values[:, -100:].transpose(0, 1))


def test_tensors_may_be_views() -> None:
    query, keys, values = inputs("three heads for each of three", 50, 500, torch.bfloat16)
    rows, pool = torch.zeros(50, 20, 64, dtype=torch.bfloat16), torch.zeros(2, 3, 2000, 64, dtype=torch.bfloat16)
    rows[:, 1:10], pool[0, :, 800:1300], pool[1, :, 800:1300] = query, keys, values
    out = torch.zeros(52, 9, 64, dtype=torch.bfloat16)
    MANY.attend(rows[:, 1:10], pool[0, :, 800:1300], pool[1, :, 800:1300], rule_of(), out[1:51])
    assert torch.equal(out[1:51], attended(query, keys, values, rule_of()))
    assert not out[0].any()
    assert not out[51].any()


@pytest.mark.parametrize("columns", [40, 600])
def test_what_is_no_number_reaches_the_rows_that_see_it_and_no_others(columns: int) -> None:
    query, keys, values = inputs("one KV head", 40, columns, torch.bfloat16)
    clean = attended(query, keys, values, rule_of())
    keys[:, -1] = math.nan
    found = attended(query, keys, values, rule_of())
    assert torch.equal(found[:-1], clean[:-1])
    assert found[-1].isnan().all()
    # Neither does it stay in the scratch.
    assert torch.equal(attended(query, keys.nan_to_num(0.0), values, rule_of())[:-1], clean[:-1])


def test_it_can_be_used_within_and_without_inference_mode() -> None:
    many = ManyRows()
    query, keys, values = inputs("one KV head", 20, 20, torch.float32)
    within, without = torch.zeros(20, 4, 16), torch.zeros(20, 4, 16)
    with torch.inference_mode():
        many.attend(query, keys, values, rule_of(), within)
    many.attend(query, keys, values, rule_of(), without)
    assert torch.equal(within, without)


def test_what_it_holds_depends_on_neither_rows_nor_columns() -> None:
    many, held = ManyRows(), set()
    for rows, columns in ((600, COLUMNS + 900), (17, 300), (256, 256), (33, 2 * COLUMNS + 5)):
        query, keys, values = inputs("one KV head", rows, columns, torch.bfloat16)
        many.attend(query, keys, values, rule_of(), torch.empty(rows, 4, 16, dtype=torch.bfloat16))
        held.add(many.nbytes)
    assert len(held) == 1
    assert held.pop() < 16 * 2**20


@given(rows=st.integers(1, 1500), before=st.integers(0, 3000), rows_max=st.sampled_from([32, 64, 128, 256]))
def test_tiles_are_all_rows_in_order_and_products_have_few_heights(rows: int, before: int, rows_max: int) -> None:
    tiles = list(tiles_of(rows, before + rows, rows_max))
    assert [row for tile in tiles for row in range(tile.first, tile.last)] == list(range(rows))
    assert all(tile.last - tile.first <= tile.rows <= rows_max for tile in tiles)
    assert all((before + tile.last) % rows_max == 0 for tile in tiles[:-1])
    assert {tile.rows for tile in tiles} <= {32, 64, 128, 256}


@given(begin=st.integers(0, 9000), length=st.integers(1, 9000))
@settings(max_examples=300)
def test_pieces_cover_every_column_once_with_few_widths(begin: int, length: int) -> None:
    end = max(begin + length, COLUMNS_QUANTUM)
    pieces = list(pieces_of(begin, end))
    mine = [column for piece in pieces for column in range(piece.begin, piece.first + piece.width)]
    assert mine == list(range(mine[0], end))
    assert max(0, begin - COLUMNS_QUANTUM) < mine[0] + 1 <= begin + 1
    for piece in pieces:
        assert 0 <= piece.first <= piece.begin
        assert piece.width in range(COLUMNS_QUANTUM, COLUMNS + 1, COLUMNS_QUANTUM)
