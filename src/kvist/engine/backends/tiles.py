"""Attention of one sequence's newest tokens over its context, in tiles of query rows.

Knows arithmetic only: no pool, no model. Tiles keep masks small, and spare the work on keys that a tile's
queries cannot see, above the diagonal and before the window.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvist.engine.backends.device import prefers_products
from kvist.engine.backends.masks import MaskCache

TILE_ROWS = 128
"""Enough rows for fast products, few enough that a tile's scores stay near the processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """How scores become weights in one layer.

    Attributes:
        window: how many positions a query looks back, itself included; None means all.
        scaling: factor on the scores.
        softcap: scores are squashed into (-softcap, softcap); None leaves them.
    """

    window: int | None
    scaling: float
    softcap: float | None


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule, masks: MaskCache
) -> torch.Tensor:
    """Attention of the last `rows` of `columns` positions.

    Args:
        query: [kv_heads, heads / kv_heads, rows, head_dim_k].
        key: [kv_heads, columns, head_dim_k]; the keys of the queries' own positions come last.
        value: [kv_heads, columns, head_dim_v].
        rule: window, scaling and softcap.
        masks: masks of this dtype on this device.

    Returns:
        [rows, kv_heads, heads / kv_heads, head_dim_v].
    """
    kv_heads, per_kv_head, rows, _ = query.shape
    columns = key.shape[1]
    output = value.new_empty(rows, kv_heads, per_kv_head, value.shape[2])
    for first in range(0, rows, TILE_ROWS):
        last = min(first + TILE_ROWS, rows)
        end = columns - rows + last
        begin = 0 if rule.window is None else max(0, columns - rows + first - rule.window + 1)
        mask = masks.mask(last - first, end - begin, rule.window) if last - first > 1 else None
        seen = slice(begin, end)
        tile = _attend_tile(query[:, :, first:last], key[:, seen], value[:, seen], mask, rule)
        output[first:last] = tile.permute(2, 0, 1, 3)
    return output


def _attend_tile(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, rule: AttentionRule
) -> torch.Tensor:
    if rule.softcap is not None or (query.shape[2] > 1 and prefers_products(query)):
        return _by_products(query, key, value, mask, rule)
    # Every query head of a KV head sees the same keys: a view, not a copy.
    per_kv_head = query.shape[1]
    key = key.unsqueeze(1).expand(-1, per_kv_head, -1, -1)
    value = value.unsqueeze(1).expand(-1, per_kv_head, -1, -1)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=rule.scaling)


def _by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, rule: AttentionRule
) -> torch.Tensor:
    """Two matrix products with the scores in memory between them, the heads of a KV head stacked as rows."""
    kv_heads, per_kv_head, rows, _ = query.shape
    scores = torch.matmul((query * rule.scaling).flatten(1, 2), key.transpose(1, 2))
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if mask is not None:
        scores.view(kv_heads, per_kv_head, rows, -1).add_(mask)
    return torch.matmul(torch.softmax(scores, dim=-1), value).view(kv_heads, per_kv_head, rows, -1)
