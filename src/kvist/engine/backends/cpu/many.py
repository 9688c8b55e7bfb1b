"""Attention of many rows over one sequence's context: matrix products, and one compiled pass between them.

Rows are taken in tiles, the heads of a KV head stacked, as many KV heads at a time as fill a product; columns in
pieces, whose results are merged with a running maximum and sum (as in FlashAttention). The pass reads a row of scores,
applies scale, cap, causal limit and window, and writes weights that sum to one over what was seen so far: where there
is one piece, as few roundings to bf16 as a softmax over everything has.

Memory is bounded, whatever the context: scratch has one size, and so have products. The second matters as much: for
each size it has not met, oneDNN compiles a kernel, which takes a millisecond and 0.7 MB that it keeps. So tiles end
where positions are multiples of their height, pieces have multiples of 256 columns, and what would be ragged is
computed in full and hidden.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kvist.engine.backends.cpu.kernel import matrix, real
from kvist.engine.backends.cpu.weigh import add_product, weigh
from kvist.engine.backends.tiles import AttentionRule

TILE_ROWS = 256
"""Rows of a tile at most: more compute more above the diagonal, fewer make products small."""

STACKED_ROWS = 1024
"""Rows of a product at most, the heads of all its KV heads counted."""

COLUMNS = 4096
"""Columns of a product at most."""

COLUMNS_QUANTUM = 256
"""Products have a multiple of this many columns."""

_ROWS = (32, 64, 128, 256)
"""Rows that a tile may have, before heads are stacked; one with fewer is computed as if it had as many."""

_SPARE = 32
"""Numbers between two rows of scores: were a row a power of two, the rows' caches would be the same few lines."""

_UNBOUNDED = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Rows [first, last), of which a product has `rows`, a number out of few."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Columns [first, first + width), of which those before `begin` are others' business."""

    first: int
    width: int
    begin: int


def tiles_of(rows: int, columns: int, rows_max: int) -> Iterator[Tile]:
    """Tiles of the last `rows` of `columns` positions: more than one end at multiples of `rows_max`, but the last."""
    start = columns - rows
    first = 0
    while first < rows:
        last = rows if rows <= rows_max else min(rows, first + rows_max - (start + first) % rows_max)
        yield Tile(first=first, last=last, rows=next(size for size in _ROWS if size >= last - first))
        first = last


def pieces_of(begin: int, end: int) -> Iterator[Piece]:
    """Pieces that cover columns [begin, end) once, and some before them where that makes a width even.

    Args:
        begin: the first column that any row sees.
        end: behind the last one; at least one quantum.
    """
    quanta = -(-(end - begin) // COLUMNS_QUANTUM)
    begin = max(0, end - quanta * COLUMNS_QUANTUM)
    while begin < end:
        width = min(COLUMNS, max(1, (end - begin) // COLUMNS_QUANTUM) * COLUMNS_QUANTUM)
        first = min(begin, end - width)
        yield Piece(first=first, width=width, begin=begin)
        begin = first + width


class ManyRows:
    """Attention of many rows, and the memory that it needs between products; one caller at a time."""

    def __init__(self) -> None:
        """Holds nothing yet."""
        self._held: dict[tuple[Any, ...], torch.Tensor] = {}

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rule: AttentionRule,
        out: torch.Tensor,
    ) -> None:
        """Attention of the last `rows` of `columns` positions; all of one dtype, bfloat16 or float32.

        Args:
            query: [rows, heads, head_dim_k], a row's numbers side by side; heads of one KV head side by side.
            keys: [kv_heads, columns, head_dim_k]; those of the rows themselves come last.
            values: [kv_heads, columns, head_dim_v].
            rule: window, scaling and softcap.
            out: [rows, heads, head_dim_v], a row's numbers side by side; written.
        """
        assert rule.scaling > 0.0, f"scaling {rule.scaling}"
        rows, columns = query.shape[0], keys.shape[1]
        if columns < COLUMNS_QUANTUM:
            keys, values = self._padded("keys", keys), self._padded("values", values)
        per = query.shape[1] // keys.shape[0]
        rows_max = max(_ROWS[0], min(TILE_ROWS, 1 << (STACKED_ROWS // per).bit_length() - 1))
        for tile in tiles_of(rows, columns, rows_max):
            begin = 0 if rule.window is None else max(0, columns - rows + tile.first - rule.window + 1)
            end = max(COLUMNS_QUANTUM, columns - rows + tile.last)
            pieces = list(pieces_of(begin, end))
            together = max(1, STACKED_ROWS // (tile.rows * per))
            for head in range(0, keys.shape[0], together):
                heads = slice(head, min(head + together, keys.shape[0]))
                work = _Work(
                    tile=tile, position=columns - rows + tile.first, heads=heads, per=per, rule=rule, held=self
                )
                work.run(query, keys, values, pieces, out)

    def floats(self, name: str, rows: int, width: int) -> torch.Tensor:
        """Float32 [rows, width] of whatever content, the same memory at each call."""
        return self.scratch(name, rows, width, torch.float32)

    def scratch(self, name: str, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """[rows, width] of whatever content, the same memory at each call."""
        found = self._held.get((name, rows, width, dtype))
        if found is None:
            # Usable wherever the caller is, though it may be here for the first time while gradients are off.
            with torch.inference_mode(mode=False):
                found = self._held[name, rows, width, dtype] = torch.zeros(rows, width, dtype=dtype)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._held.values())

    def _padded(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """As many columns as the smallest product has, zeros after the given ones."""
        heads, columns, width = tensor.shape
        padded = self.scratch(name, heads * COLUMNS_QUANTUM, width, tensor.dtype).view(heads, COLUMNS_QUANTUM, width)
        padded[:, :columns].copy_(tensor)
        padded[:, columns:].zero_()
        return padded


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One tile for some KV heads; `position` is its first row's."""

    tile: Tile
    position: int
    heads: slice
    per: int
    rule: AttentionRule
    held: ManyRows

    def run(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        pieces: list[Piece],
        out: torch.Tensor,
    ) -> None:
        width_v, dtype = values.shape[2], query.dtype
        count, stacked = self.heads.stop - self.heads.start, self.tile.rows * self.per
        size = max(STACKED_ROWS, stacked)
        scores = self.held.scratch("scores", size, COLUMNS + _SPARE, dtype)
        product = self.held.scratch("product", size, width_v, dtype)
        state = matrix(self.held.floats("state", 3, size))
        sums = matrix(self.held.floats("sums", size, width_v))
        row = matrix(self.held.floats("row", torch.get_num_threads(), COLUMNS))
        queries = self._stacked(query)
        written = matrix(out[self.tile.first : self.tile.last].flatten(1))
        parts = [slice(head * stacked, (head + 1) * stacked) for head in range(count)]
        heads = range(self.heads.start, self.heads.stop)
        shape = (count, stacked, self.per, self.tile.last - self.tile.first)
        window, cap = self.rule.window or _UNBOUNDED, self.rule.softcap or 0.0
        for index, piece in enumerate(pieces):
            seen = slice(piece.first, piece.first + piece.width)
            for part, head in zip(parts, heads, strict=True):
                torch.mm(queries[part], keys[head, seen].t(), out=scores[part, : piece.width])
            place = (piece.width, piece.begin - piece.first, self.position - piece.first, window)
            fresh, done = int(index == 0), int(index == len(pieces) - 1)
            weigh(dtype, *matrix(scores), *state, *row, *shape, *place, fresh, real(self.rule.scaling), real(cap))
            for part, head in zip(parts, heads, strict=True):
                torch.mm(scores[part, : piece.width], values[head, seen], out=product[part])
            add_product(
                dtype, *matrix(product), *state, *sums, *written, *shape, fresh, done, self.heads.start, width_v
            )

    def _stacked(self, query: torch.Tensor) -> torch.Tensor:
        """The tile's queries, [kv_heads * rows * per, head_dim_k]; rows beyond the tile are whatever they are."""
        count, width = self.heads.stop - self.heads.start, query.shape[2]
        stacked = self.tile.rows * self.per
        held = self.held.scratch("queries", max(STACKED_ROWS, stacked), width, query.dtype)
        into = held[: count * stacked].view(count, self.tile.rows, self.per, width)
        rows = slice(self.tile.first, self.tile.last)
        heads = slice(self.heads.start * self.per, self.heads.stop * self.per)
        source = query[rows, heads].view(-1, count, self.per, width)
        into[:, : self.tile.last - self.tile.first].copy_(source.transpose(0, 1))
        return held
