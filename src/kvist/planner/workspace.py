"""Most bytes that one step takes beyond weights and KV: estimates, which engines replace by measuring a full step.

Two peaks that do not meet count, and the larger is the answer: inside a layer, for all tokens of a step; and behind the
last one, for the logits of the tokens that are drawn from.
"""

from kvist.base.units import Bytes
from kvist.geometry.groups import DTYPE_BYTES
from kvist.geometry.layers import ModelLayers
from kvist.planner.sharding import Parallel

TILE_ROWS = 128
"""Queries of one sequence whose scores Kvist's engine has in memory together."""

_TILES = 3
"""Scores, weights and the mask between them, each of a tile's rows by all positions."""

_LIBRARIES_BYTES = 32 * 2**20
"""Pools and caches of the libraries that compute: see `kvist_workspace`."""

_SAMPLING_BYTES = 4
"""A sampler computes in float32, whatever the model does."""


def fused_workspace(model: ModelLayers, parallel: Parallel, *, step_tokens: int, sequences: int) -> Bytes:
    """Of an engine whose attention keeps no scores, such as vLLM on a GPU.

    In the widest feed-forward block there are at once the gate and the up-projection, their product, and three of the
    residual stream's width. For Llama-3.1-8B vllm#10517 prints 0.92 GiB more for 9,000 more tokens, and this says 0.93.
    """
    return Bytes(max(_layer_bytes(model, parallel, step_tokens), _logits_bytes(model, step_tokens, sequences)))


def kvist_workspace(
    model: ModelLayers, *, step_tokens: int, sequences: int, context_tokens: int, dtype_bytes: int = 2
) -> Bytes:
    """Of Kvist's own engine on a CPU, whose attention keeps the scores of a tile.

    Held against measured steps of SmolLM2-135M and Gemma-3-270M (256, 1024 and 4096 tokens, 8 to 256 sequences,
    contexts of 2048 and 8192): 44 % too low to 27 % too high, which is at most 14 % of weights and workspace together.
    """
    scores = _TILES * model.query_heads * TILE_ROWS * context_tokens * dtype_bytes
    layer = _layer_bytes(model, Parallel(), step_tokens, dtype_bytes) + scores
    return Bytes(_LIBRARIES_BYTES + max(layer, _logits_bytes(model, step_tokens, sequences, dtype_bytes)))


def _layer_bytes(model: ModelLayers, parallel: Parallel, step_tokens: int, dtype_bytes: int | None = None) -> int:
    wide = 3 * -(-model.intermediate_size // parallel.tensor) + 3 * model.hidden_size
    return step_tokens * wide * (dtype_bytes or DTYPE_BYTES[model.dtype])


def _logits_bytes(model: ModelLayers, step_tokens: int, sequences: int, dtype_bytes: int | None = None) -> int:
    """Of the logits as computed, and a copy to draw from."""
    each = (dtype_bytes or DTYPE_BYTES[model.dtype]) + _SAMPLING_BYTES
    return min(sequences, step_tokens) * model.vocab_size * each
