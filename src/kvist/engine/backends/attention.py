"""Attention over the paged pool, in the place where transformers' models call attention.

Knows one step: where its tokens' K and V go and which blocks each sequence reads. A layer's call first writes
the new K and V into their blocks, then lets each sequence's queries read that sequence's blocks. Nothing is
padded: sequences of all lengths, prefilling and decoding, lie one after the other in one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.masks import MaskCache
from kvist.engine.backends.tiles import AttentionRule, attend
from kvist.engine.batch import Batch, BlockRun, Chunk

IMPLEMENTATION = "kvist"


class Step(Protocol):
    """One step's attention, handed to every layer of the model, one after the other, on one thread."""

    def window(self, index: int) -> int | None:
        """How many positions a query of this layer looks back; None means all."""
        ...

    def layer(
        self, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule
    ) -> torch.Tensor:
        """Writes K and V of one layer and returns its attention output; takes as long as that takes.

        Args:
            index: of the layer in the model.
            query: [1, heads, tokens, head_dim_k].
            key: [1, kv_heads, tokens, head_dim_k], rotated.
            value: [1, kv_heads, tokens, head_dim_v].
            rule: how the layer's scores become weights.

        Returns:
            [1, tokens, heads, head_dim_v].
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What one chunk reads in one KV group.

    Attributes:
        rows: its queries' place in the batch.
        blocks: its live blocks, [count]; None when they follow each other in the pool.
        first: index in the pool of the first live block.
        columns: tokens in the live blocks, from the first block's first to the chunk's last.
    """

    rows: slice
    blocks: torch.Tensor | None
    first: int
    columns: int


class PagedStep:
    """A step on any device, in any dtype, by operations of torch."""

    def __init__(self, batch: Batch, store: KvStore, masks: MaskCache, places: dict[int, tuple[int, int]]) -> None:
        """Lays out a batch.

        Args:
            batch: chunks, one after the other.
            store: the KV tensors.
            masks: of the store's dtype and device.
            places: for each layer of the model its group and its index within the group.
        """
        self._store = store
        self._masks = masks
        self._places = places
        groups, chunks = range(len(store.groups)), tuple(batch)
        self._targets = [
            torch.cat([self._targets_of(chunk, group) for chunk in chunks]).to(store.device) for group in groups
        ]
        self._spans = [self._spans_of(chunks, group) for group in groups]

    def window(self, index: int) -> int | None:
        """How many positions a query of this layer looks back; None means all."""
        return self._store.groups[self._places[index][0]].window

    def layer(
        self, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule
    ) -> torch.Tensor:
        """Writes K and V of one layer and returns its attention output; see `Step.layer`."""
        group, place = self._places[index]
        keys, values = self._store.keys[group][place], self._store.values[group][place]
        keys.index_copy_(1, self._targets[group], key[0])
        values.index_copy_(1, self._targets[group], value[0])
        queries = query[0].reshape(keys.shape[0], -1, *query.shape[2:])
        parts = [
            attend(queries[:, :, span.rows], self._read(keys, span), self._read(values, span), rule, self._masks)
            for span in self._spans[group]
        ]
        return torch.cat(parts).flatten(1, 2).unsqueeze(0)

    def _read(self, tensor: torch.Tensor, span: Span) -> torch.Tensor:
        """The live tokens of one sequence: [kv_heads, columns, head_dim], a view when blocks are consecutive."""
        size = self._store.block_tokens
        if span.blocks is None:
            return tensor[:, span.first * size : span.first * size + span.columns]
        kv_heads, _, head_dim = tensor.shape
        gathered = tensor.view(kv_heads, -1, size * head_dim).index_select(1, span.blocks)
        return gathered.view(kv_heads, -1, head_dim)[:, : span.columns]

    def _targets_of(self, chunk: Chunk, group: int) -> torch.Tensor:
        """Where in the pool each token of the chunk lies: [tokens]."""
        run, size = chunk.runs[group], self._store.block_tokens
        offsets = torch.arange(len(chunk.tokens)) + (chunk.start - run.first * size)
        return torch.tensor(run.blocks)[offsets // size] * size + offsets % size

    def _spans_of(self, chunks: Sequence[Chunk], group: int) -> list[Span]:
        spans: list[Span] = []
        row = 0
        for chunk in chunks:
            run, rows = chunk.runs[group], len(chunk.tokens)
            spans.append(
                Span(
                    rows=slice(row, row + rows),
                    blocks=None if _consecutive(run) else torch.tensor(run.blocks, device=self._store.device),
                    first=run.blocks[0],
                    columns=chunk.start + rows - run.first * self._store.block_tokens,
                )
            )
            row += rows
        return spans


def _consecutive(run: BlockRun) -> bool:
    first = run.blocks[0]
    return run.blocks == tuple(range(first, first + len(run.blocks)))


def _attention(  # noqa: PLR0913  the signature is transformers'
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    *,
    scaling: float,
    kvist: Step,
    softcap: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """What a transformers attention module calls; the step arrives as a keyword of the model's call."""
    layer = layer_index(module)
    rule = AttentionRule(window=kvist.window(layer), scaling=scaling, softcap=softcap)
    return kvist.layer(layer, query, key, value, rule), None


def layer_index(module: torch.nn.Module) -> int:
    """Which layer of the model an attention module is."""
    index = module.layer_idx
    assert isinstance(index, int), f"{type(module).__name__} has no layer index"
    return index


def _no_mask(*_: object, **__: object) -> None:
    """Each sequence's masks are the step's business: the model must not build one over the whole batch."""


def register() -> None:
    """Makes this attention known to transformers under the name `IMPLEMENTATION`; harmless to repeat."""
    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
