"""How fast norm, gate and rotation pass over rows, against torch's functions and a copy of the same bytes.

    python bench/micro/row_kernels.py --json bench/results/row-kernels.json

On one thread, for the figures are per core. A few rows show what a call costs, many what a row costs. Torch's way is
what transformers' layers do, the rotation with the write of keys and values at their places; the copy is of
everything that is read, and so writes at least as much as they do.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
from rounds import Case, parser_of, run
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from kvist.base.errors import KvistError
from kvist.engine.backends.cpu.gate import gated
from kvist.engine.backends.cpu.normalise import rms_norm
from kvist.engine.backends.cpu.rotate import KvTarget, rotate_and_write

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
WIDTH, BETWEEN = HEADS * HEAD_DIM, 1536
"""The shapes of SmolLM2-135M."""


class Layer:
    """What the kernels are given for so many rows, and both ways to do each."""

    def __init__(self, rows: int, dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        self.x, self.both = normal(rows, WIDTH), normal(rows, 2 * BETWEEN)
        self.fused = normal(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        self.norm = LlamaRMSNorm(WIDTH).to(dtype)
        self.rotation = normal(rows, HEAD_DIM), normal(rows, HEAD_DIM)
        tokens = 2 * rows
        self.into = KvTarget(
            keys=torch.zeros(KV_HEADS, tokens, HEAD_DIM, dtype=dtype),
            values=torch.zeros(KV_HEADS, tokens, HEAD_DIM, dtype=dtype),
            places=torch.randperm(tokens, generator=generator)[:rows],
        )

    def ways(self) -> dict[str, Callable[[], object]]:
        """Each pass in each way."""
        weight = self.norm.weight.data
        return {
            "norm, kernel": lambda: rms_norm(self.x, weight, epsilon=1e-6),
            "norm, torch": lambda: self.norm(self.x),
            "norm, copy": self.x.clone,
            "gate, kernel": lambda: gated(self.both, "silu"),
            "gate, torch": self._gate,
            "gate, copy": self.both.clone,
            "rotation, kernel": lambda: rotate_and_write(self.fused, self.rotation, self.into),
            "rotation, torch": self._rotate,
            "rotation, copy": self.fused.clone,
        }

    def _gate(self) -> torch.Tensor:
        gate, up = self.both.chunk(2, -1)
        return functional.silu(gate) * up

    def _rotate(self) -> torch.Tensor:
        heads = self.fused.unflatten(-1, (-1, HEAD_DIM))
        query, key, value = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
        query, key = apply_rotary_pos_emb(query, key, *self.rotation)
        self.into.keys[:, self.into.places] = key.transpose(0, 1)
        self.into.values[:, self.into.places] = value.transpose(0, 1)
        return query


def again(way: Callable[[], object], times: int) -> Callable[[], None]:
    def often() -> None:
        for _ in range(times):
            way()

    return often


def cases(args: argparse.Namespace) -> list[Case]:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    return [
        Case(name=f"{name}, {rows} rows of {dtype}", unit="rows", units=rows * times, run=again(way, times))
        for dtype in args.dtypes
        for rows in args.rows
        for times in [max(1, args.work // rows)]
        for name, way in Layer(rows, DTYPES[dtype], args.seed).ways().items()
    ]


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 1024], help="rows of a call (1 8 1024)")
    parser.add_argument("--work", type=int, default=8192, help="rows of a sample, in one call or more (%(default)s)")
    parser.add_argument("--dtypes", nargs="+", default=[*DTYPES], choices=DTYPES, help="numbers to try (all)")
    run("row_kernels", argv, parser, cases)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"row_kernels: {error}")
