"""Families with multi-head latent attention: DeepSeek V2 and V3, and Kimi K2, which is built as V3 is."""

from kvist.geometry.config import read_layer_count
from kvist.geometry.families.mixtures import dense_feed, mixture, read_experts
from kvist.geometry.families.parts import Description, Family, Part, Sizes, needed, stacked
from kvist.geometry.fields import Fields
from kvist.geometry.heads import HIDDEN_MAX, Heads
from kvist.geometry.layers import LatentLayer
from kvist.geometry.weights import Weights, linear, vectors

_DIM_MAX, _HEADS_MAX = 65_536, 65_536


def _deepseek(fields: Fields) -> Description:
    latent = needed(fields, "kv_lora_rank", most=_DIM_MAX)
    rotated = needed(fields, "qk_rope_head_dim", most=_DIM_MAX)
    sizes = _sizes(fields, rotated)
    mixer = Part(weights=_attention(fields, sizes, latent, rotated))
    keeps = [LatentLayer(latent=latent, rope=rotated)] * sizes.layers
    return stacked(sizes, keeps, mixer, _feeds(fields, sizes)).done()


def _sizes(fields: Fields, rotated: int) -> Sizes:
    """Sizes without key/value heads: what is kept has none."""
    heads = needed(fields, "num_attention_heads", most=_HEADS_MAX)
    fields.require(["vocab_size"], fields.text("model_type"))
    plain = needed(fields, "qk_nope_head_dim", most=_DIM_MAX)
    return Sizes(
        layers=read_layer_count(fields),
        hidden=needed(fields, "hidden_size", most=HIDDEN_MAX),
        positions=needed(fields, "max_position_embeddings"),
        heads=Heads(query=heads, kv=heads, dim=plain + rotated),
    )


def _attention(fields: Fields, sizes: Sizes, latent: int, rotated: int) -> Weights:
    bias = fields.flag("attention_bias", default=False)
    values = needed(fields, "v_head_dim", most=_DIM_MAX)
    heads = sizes.heads
    down = linear(sizes.hidden, latent + rotated, bias=bias) + vectors(latent)
    up = linear(latent, heads.query * (heads.dim - rotated + values))
    queries = _queries(fields, sizes, bias=bias)
    return queries + down + up + linear(heads.query * values, sizes.hidden, bias=bias)


def _queries(fields: Fields, sizes: Sizes, *, bias: bool) -> Weights:
    """The queries' projection, which may be compressed as the keys' and values' is."""
    width = sizes.heads.query * sizes.heads.dim
    fields.require(["q_lora_rank"], fields.text("model_type"))
    if fields.is_null("q_lora_rank"):
        return linear(sizes.hidden, width)
    rank = fields.integer("q_lora_rank", most=_DIM_MAX)
    return linear(sizes.hidden, rank, bias=bias) + vectors(rank) + linear(rank, width)


def _feeds(fields: Fields, sizes: Sizes) -> list[Part]:
    first = needed(fields, "first_k_dense_replace", least=0)
    step = fields.integer("moe_layer_freq", default=1)
    sparse = [layer >= first and layer % step == 0 for layer in range(sizes.layers)]
    with_experts = _mixture(fields, sizes) if any(sparse) else Part(weights=Weights())
    without = dense_feed(fields, sizes.hidden) if not all(sparse) else Part(weights=Weights())
    return [with_experts if chooses else without for chooses in sparse]


def _mixture(fields: Fields, sizes: Sizes) -> Part:
    width = needed(fields, "moe_intermediate_size")
    shared = needed(fields, "n_shared_experts", least=0) * width
    return mixture(sizes.hidden, width, read_experts(fields, "n_routed_experts", "num_local_experts"), shared=shared)


LATENT: dict[str, Family] = {"deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek}
"""Family by model type."""
