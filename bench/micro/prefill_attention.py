"""How fast attention of many rows is, against any device's path and the matrix products that it cannot do without.

    python bench/micro/prefill_attention.py --rounds 10 --json bench/results/prefill-attention.json

On one thread, for the figures are per core. A unit is a floating-point operation that attention's definition asks for:
two products of a query head's row with each position it sees; what a way computes beyond that, above the diagonal and
before a window, is its own affair. "Products alone" are the same tiles' matrix products with nothing between them, as
fast as this machine does them: the limit of any way that uses them.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rounds import Case, parser_of, run

from kvist.base.errors import KvistError
from kvist.engine.backends.cpu.many import ManyRows, pieces_of, tiles_of
from kvist.engine.backends.masks import MaskCache
from kvist.engine.backends.tiles import TILE_ROWS, AttentionRule, attend

DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Attention of one layer of a model."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None


SMOLLM2 = Shape(name="SmolLM2", heads=9, kv_heads=3, head_dim=64)
GEMMA3 = Shape(name="Gemma 3", heads=4, kv_heads=1, head_dim=256)
GEMMA3_WINDOW = Shape(name="Gemma 3, window", heads=4, kv_heads=1, head_dim=256, window=512)
SIZES = (
    (SMOLLM2, 1024, 1024),
    (SMOLLM2, 1024, 3072),
    (SMOLLM2, 1024, 8192),
    (SMOLLM2, 64, 3001),
    (GEMMA3, 1024, 3072),
    (GEMMA3, 64, 3001),
    (GEMMA3_WINDOW, 1024, 3072),
)
"""Layers, with rows and columns of one call: chunks of a long prompt, and the tail of one after a hit."""


class Layer:
    """One call's tensors, and each way to do it."""

    def __init__(self, shape: Shape, rows: int, columns: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=generator).to(DTYPE)

        self.shape, self.rows, self.columns = shape, rows, columns
        self.query = normal(rows, shape.heads, shape.head_dim)
        # A pool is larger than what a call reads of it.
        self.keys = normal(shape.kv_heads, columns + 1024, shape.head_dim)[:, :columns]
        self.values = normal(shape.kv_heads, columns + 1024, shape.head_dim)[:, :columns]
        self.out = torch.empty_like(self.query)
        self.rule = AttentionRule(window=shape.window, scaling=shape.head_dim**-0.5, softcap=None)
        self.many = ManyRows()
        self.masks = MaskCache(dtype=DTYPE, device=torch.device("cpu"), tile_rows=TILE_ROWS)
        # By KV head, as transformers' layers hand queries over.
        self.by_head = self.query.transpose(0, 1).reshape(shape.kv_heads, -1, rows, shape.head_dim).contiguous()
        self.scores = torch.empty(TILE_ROWS * 8, columns, dtype=DTYPE)

    def operations(self) -> int:
        """Floating-point operations of both products over all that is seen."""
        sees = [min(self.columns - row, self.shape.window or self.columns) for row in range(self.rows)]
        return 4 * self.shape.heads * self.shape.head_dim * sum(sees)

    def ways(self) -> dict[str, Callable[[], object]]:
        return {
            "any device's path": lambda: attend(self.by_head, self.keys, self.values, self.rule, self.masks),
            "kernel": lambda: self.many.attend(self.query, self.keys, self.values, self.rule, self.out),
            "products alone": self._products,
        }

    def _products(self) -> None:
        per, window = self.shape.heads // self.shape.kv_heads, self.shape.window
        for tile in tiles_of(self.rows, self.columns, 256):
            begin = 0 if window is None else max(0, self.columns - self.rows + tile.first - window + 1)
            for piece in pieces_of(begin, self.columns - self.rows + tile.last):
                seen = slice(piece.first, piece.first + piece.width)
                scores = self.scores[: tile.rows * per, : piece.width]
                for head in range(self.shape.kv_heads):
                    queries = self.by_head[head].view(-1, self.shape.head_dim)[: tile.rows * per]
                    torch.mm(queries, self.keys[head, seen].t(), out=scores)
                    torch.mm(scores, self.values[head, seen])


def cases(args: argparse.Namespace) -> list[Case]:
    torch.set_num_threads(1)
    found = []
    for shape, rows, columns in SIZES:
        layer = Layer(shape, rows, columns, args.seed)
        size = f"{shape.name}: {rows:,} rows, {columns:,} columns"
        found += [
            Case(name=f"{size}, {way}", unit="operations", units=layer.operations(), run=call)
            for way, call in layer.ways().items()
        ]
    return found


def main(argv: Sequence[str]) -> None:
    run("prefill_attention", argv, parser_of(__doc__), cases)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"prefill_attention: {error}")
