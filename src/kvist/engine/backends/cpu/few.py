"""Attention of few rows over the blocks where they lie: each block is read once for all rows that see it.

Two kernels do it (`kvist.engine.backends.cpu.reads`): one reads segments, one merges what rows saw in several of them.
What differs from step to step lies behind one address, so that kernels which were put together once serve all steps.
"""

import math
from array import array
from dataclasses import dataclass

import torch

from kvist.engine.backends.cpu import kernel
from kvist.engine.backends.cpu.reads import TILE_TOKENS, attend_segments, merge_results
from kvist.engine.backends.cpu.segments import ROWS_MAX, Integers, Plan
from kvist.engine.backends.cpu.vectors import KEYS
from kvist.engine.backends.tiles import AttentionRule


class Scratch:
    """Memory that kernels compute with; it grows to the largest step seen, and what a step needs is bounded."""

    def __init__(self) -> None:
        """Holds nothing yet."""
        self._held: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Memory of this shape and of whatever content; for the same name it is the same memory."""
        size, held = math.prod(shape), self._held.get((name, dtype))
        if held is None or held.numel() < size:
            held = self._held[name, dtype] = torch.empty(size, dtype=dtype)
        return held[:size].view(shape)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._held.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One layer's K and V.

    Attributes:
        keys: [kv_heads, tokens, head_dim_k], a head's tokens side by side.
        values: [kv_heads, tokens, head_dim_v].
        block_tokens: tokens of a block.
        apart: tokens from one head to the next and from one block to the next; None where they are as in these shapes.
    """

    keys: torch.Tensor
    values: torch.Tensor
    block_tokens: int
    apart: tuple[int, int] | None = None


class Readers:
    """One KV group's plan, at an address where kernels that were put together once find that of each step."""

    def __init__(self, plan: Plan, scratch: Scratch) -> None:
        """Shows a first plan; partial results go to `scratch`."""
        self.scratch = scratch
        self._shown = array("q", bytes(8 * 12))
        self._numbers = 0
        self.show(plan)

    @property
    def address(self) -> int:
        """Where kernels look."""
        return self._shown.buffer_info()[0]

    def show(self, plan: Plan) -> None:
        """Puts a plan in the place of the one before, which nobody reads any more."""
        self.plan = plan
        places = (*_integers(plan.segments), *_integers(plan.pairs), *_integers(plan.tables), *_integers(plan.merges))
        self._shown[:8] = array("q", places)
        self._shown[11] = plan.units
        self._make_room()

    def expect(self, numbers: int) -> None:
        """Has room for partial results of so many numbers, for all heads of a row together."""
        if numbers > self._numbers:
            self._numbers = numbers
            self._make_room()

    def _make_room(self) -> None:
        # Held here as well: another group may make the scratch larger, which is then other memory.
        self._partials = self.scratch.take("partials", (self.plan.partials, self._numbers))
        self._shown[8:11] = array("q", (self._partials.data_ptr(), self.plan.partials, self._numbers))


def attend_few(  # noqa: PLR0913  five things are of attention, the sixth is when
    query: torch.Tensor,
    pool: Pool,
    readers: Readers,
    rule: AttentionRule,
    out: torch.Tensor,
    *,
    program: kernel.Program | None = None,
) -> None:
    """Attention of rows as planned; the plan has seen to the window.

    Args:
        query: [rows, heads, head_dim_k]; heads of one KV head side by side.
        pool: where K and V lie, those of the rows included.
        readers: who reads what.
        rule: scaling and softcap.
        out: [rows, heads, head_dim_v]; rows that are in no plan stay as they are.
        program: what this is added to, instead of being done now; it then follows whatever plan `readers` shows.
    """
    rows, heads, width_k = query.shape
    kv_heads, tokens, width_v = pool.values.shape
    per = heads // kv_heads
    head_rows, block_rows = pool.apart or (tokens, pool.block_tokens)
    columns = max(TILE_TOKENS, pool.block_tokens) + KEYS
    work = readers.scratch.take("work", (torch.get_num_threads(), ROWS_MAX * per * (2 + width_v + columns)))
    readers.expect(heads * (width_v + 2))
    given = (
        *(query.data_ptr(), rows, query.stride(0)),
        *(out.data_ptr(), rows, out.stride(0)),
        *(pool.keys.data_ptr(), kv_heads * tokens, width_k),
        *(pool.values.data_ptr(), kv_heads * tokens, width_v),
        *kernel.matrix(work),
        readers.address,
        *(kv_heads, per, pool.block_tokens, head_rows, block_rows),
        *(kernel.real(rule.scaling), kernel.real(rule.softcap or 0.0)),
    )
    attend_segments(query.dtype, *given, program=program)
    if program is not None:
        program.hold(work, readers)
    if program is not None or readers.plan.partials:
        merge_results(query.dtype, *given, program=program)


def _integers(array: Integers) -> tuple[int, int]:
    assert array.flags.c_contiguous, f"strides {array.strides}"
    return array.__array_interface__["data"][0], array.size
