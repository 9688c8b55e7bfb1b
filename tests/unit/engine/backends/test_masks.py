"""Masks are what their definition says, however large and in whatever order they are asked for."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.engine.backends.masks import MaskCache

CPU = torch.device("cpu")
TILE = 8


def defined(rows: int, columns: int, window: int | None) -> torch.Tensor:
    """0 where query r, at position columns - rows + r, sees key c; minus infinity elsewhere."""
    mask = torch.full((rows, columns), -math.inf)
    for row in range(rows):
        stands = columns - rows + row
        for column in range(columns):
            if column <= stands and (window is None or column > stands - window):
                mask[row, column] = 0.0
    return mask


@st.composite
def asked(draw: st.DrawFn) -> tuple[int, int, int | None]:
    """Rows, columns and window of one call, within what `mask` promises."""
    rows = draw(st.integers(1, TILE))
    window = draw(st.one_of(st.none(), st.integers(1, 12)))
    most = 60 if window is None else rows + window - 1
    return rows, draw(st.integers(rows, most)), window


@settings(max_examples=examples(100))
@given(st.lists(asked(), min_size=1, max_size=12))
def test_every_mask_is_as_defined_and_stays_so(calls: list[tuple[int, int, int | None]]) -> None:
    masks = MaskCache(dtype=torch.float32, device=CPU, tile_rows=TILE)
    given_out = [masks.mask(*call) for call in calls]
    for call, mask in zip(calls, given_out, strict=True):
        assert torch.equal(mask, defined(*call)), call


def test_growing_keeps_what_was_handed_out() -> None:
    masks = MaskCache(dtype=torch.float32, device=CPU, tile_rows=TILE)
    small = masks.mask(3, TILE, None)
    large = masks.mask(TILE, 50 * TILE, None)
    assert torch.equal(small, defined(3, TILE, None))
    assert torch.equal(large, defined(TILE, 50 * TILE, None))


def test_masks_of_one_kind_share_their_memory() -> None:
    masks = MaskCache(dtype=torch.float32, device=CPU, tile_rows=TILE)
    for window, columns in ((None, 2 * TILE), (5, TILE)):
        first, again = masks.mask(TILE, columns, window), masks.mask(TILE - 2, columns - 2, window)
        assert first.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_mask_has_the_dtype_of_what_it_is_added_to(dtype: torch.dtype) -> None:
    masks = MaskCache(dtype=dtype, device=CPU, tile_rows=TILE)
    for window in (None, 4):
        mask = masks.mask(2, 3, window)
        assert mask.dtype == dtype
        assert torch.equal(mask.float(), defined(2, 3, window))
