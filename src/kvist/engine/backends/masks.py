"""Additive attention masks, made once and handed out as views.

Rows are the last `rows` positions of the keys they look at, so that a mask is always the lower right corner
of a larger one.
"""

import torch


class MaskCache:
    """Masks of one dtype on one device; grows to the longest context seen."""

    def __init__(self, *, dtype: torch.dtype, device: torch.device, tile_rows: int) -> None:
        """Serves masks of up to `tile_rows` rows."""
        self._dtype = dtype
        self._device = device
        self._tile_rows = tile_rows
        self._causal = self._banded(tile_rows, tile_rows)
        self._windowed: dict[int, torch.Tensor] = {}

    def mask(self, rows: int, columns: int, window: int | None) -> torch.Tensor:
        """Mask [rows, columns] for queries at the last `rows` of `columns` positions.

        Args:
            rows: number of queries, at most `tile_rows`.
            columns: number of keys; with a window at most rows + window - 1.
            window: how many positions a query looks back, itself included; None means all.
        """
        if window is None:
            if columns > self._causal.shape[1]:
                self._causal = self._banded(max(columns, 2 * self._causal.shape[1]), None)
            base = self._causal
        else:
            if window not in self._windowed:
                self._windowed[window] = self._banded(self._tile_rows + window - 1, window)
            base = self._windowed[window]
        return base[self._tile_rows - rows :, base.shape[1] - columns :]

    def _banded(self, columns: int, window: int | None) -> torch.Tensor:
        """Mask [tile_rows, columns]; row i stands at position columns - tile_rows + i."""
        query = torch.arange(columns - self._tile_rows, columns).unsqueeze(1)
        key = torch.arange(columns).unsqueeze(0)
        hidden = key > query
        if window is not None:
            hidden |= key <= query - window
        mask = torch.zeros(self._tile_rows, columns, dtype=self._dtype)
        return mask.masked_fill_(hidden, float("-inf")).to(self._device)
