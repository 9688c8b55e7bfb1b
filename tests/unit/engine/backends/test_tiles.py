"""Attention in tiles is attention: compared with the definition, written out in double precision."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.engine.backends.masks import MaskCache
from kvist.engine.backends.tiles import TILE_ROWS, AttentionRule, attend

CPU = torch.device("cpu")
WITHIN = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
# One for all, as in a backend: what one call leaves in it, the next must not mind.
MASKS = {dtype: MaskCache(dtype=dtype, device=CPU, tile_rows=TILE_ROWS) for dtype in WITHIN}


def defined(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
    """[rows, kv_heads, per kv head, head_dim_v], as the arithmetic of one query after the other."""
    rows, columns = query.shape[2], key.shape[1]
    scores = torch.einsum("hgrd,hcd->hgrc", query.double(), key.double()) * rule.scaling
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    stands = torch.arange(columns - rows, columns)[:, None]
    looks = torch.arange(columns)[None, :]
    seen = looks <= stands
    if rule.window is not None:
        seen &= looks > stands - rule.window
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return torch.einsum("hgrc,hcd->rhgd", weights, value.double())


def check(
    rows: int,
    columns: int,
    rule: AttentionRule,
    *,
    heads: tuple[int, int] = (2, 3),
    head_dims: tuple[int, int] = (8, 8),
    dtype: torch.dtype = torch.float32,
) -> None:
    """Compares on random numbers; keys and values are views of a pool in which others' lie before and after."""
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    (kv_heads, per_kv_head), (head_dim_k, head_dim_v) = heads, head_dims

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    query = normal(kv_heads, per_kv_head, rows, head_dim_k)
    key = normal(kv_heads, columns + 37, head_dim_k)[:, 16 : 16 + columns]
    value = normal(kv_heads, columns + 37, head_dim_v)[:, 16 : 16 + columns]
    found = attend(query, key, value, rule, MASKS[dtype])
    assert found.dtype == dtype
    expected = defined(query, key, value, rule)
    assert found.shape == expected.shape
    assert (found - expected).abs().max().item() <= WITHIN[dtype], (rows, columns, rule)


@settings(max_examples=examples(60))
@given(
    rows=st.one_of(st.integers(1, 40), st.integers(1, 600)),
    context=st.one_of(st.just(0), st.integers(0, 700)),
    window=st.one_of(st.none(), st.integers(1, 40), st.integers(1, 900)),
    softcap=st.one_of(st.none(), st.floats(0.5, 50)),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    head_dims=st.tuples(st.sampled_from([2, 8, 16, 24]), st.sampled_from([2, 8, 16, 40])),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
)
@example(rows=600, context=0, window=None, softcap=None, heads=(1, 1), head_dims=(8, 8), dtype=torch.float32)
@example(rows=257, context=300, window=17, softcap=5.0, heads=(2, 2), head_dims=(8, 16), dtype=torch.bfloat16)
def test_any_shape(*, rows, context, window, softcap, heads, head_dims, dtype) -> None:
    rule = AttentionRule(window=window, scaling=head_dims[0] ** -0.5, softcap=softcap)
    check(rows, context + rows, rule, heads=heads, head_dims=head_dims, dtype=dtype)


@pytest.mark.parametrize("window", [None, 1, 2, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 10_000])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_rows_around_the_ends_of_tiles(window: int | None, softcap: float | None) -> None:
    rule = AttentionRule(window=window, scaling=0.3, softcap=softcap)
    for rows in (1, 2, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 2 * TILE_ROWS + 1):
        for context in (0, 1, TILE_ROWS):
            check(rows, context + rows, rule, heads=(1, 2))


def test_a_window_of_one_sees_only_itself() -> None:
    rule = AttentionRule(window=1, scaling=1.0, softcap=None)
    query, key, value = torch.randn(1, 1, 5, 4), torch.randn(1, 9, 4), torch.randn(1, 9, 4)
    found = attend(query, key, value, rule, MASKS[torch.float32])
    torch.testing.assert_close(found[:, 0, 0], value[0, 4:])


def test_what_lies_before_the_window_is_not_even_read() -> None:
    rule = AttentionRule(window=3, scaling=1.0, softcap=None)
    query, key, value = torch.randn(1, 1, 2, 4), torch.randn(1, 9, 4), torch.randn(1, 9, 4)
    clean = attend(query, key, value, rule, MASKS[torch.float32])
    key[:, :5], value[:, :5] = math.nan, math.nan
    assert torch.equal(attend(query, key, value, rule, MASKS[torch.float32]), clean)


def test_large_scores_do_not_overflow() -> None:
    for softcap in (None, 50.0):
        rule = AttentionRule(window=None, scaling=1.0, softcap=softcap)
        query, key = torch.full((1, 1, 3, 4), 1e4), torch.full((1, 3, 4), 1e4)
        value = torch.randn(1, 3, 4)
        found = attend(query, key, value, rule, MASKS[torch.float32])
        torch.testing.assert_close(found[2, 0, 0], value[0].mean(0))
