"""Families whose feed-forward parts are experts among which each token chooses."""

from dataclasses import dataclass, replace

from kvist.geometry import windows
from kvist.geometry.families.parts import (
    Description,
    Family,
    Part,
    Sizes,
    attention_layer,
    attention_layers,
    layer_list,
    needed,
    read_sizes,
    stacked,
)
from kvist.geometry.fields import Fields
from kvist.geometry.heads import HeadRules
from kvist.geometry.layers import AttentionLayer
from kvist.geometry.weights import Weights, attention, experts, gated, linear, vectors

EXPERTS_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """How many experts a layer has, and how many of them a token chooses."""

    count: int
    chosen: int


def read_experts(fields: Fields, *keys: str) -> Experts:
    """Reads the number of experts, under whichever of these names it is there, and `num_experts_per_tok`.

    Raises:
        ModelError: one is missing or no number, or more are chosen than there are.
    """
    count = needed(fields, *keys, most=EXPERTS_MAX)
    return Experts(count=count, chosen=needed(fields, "num_experts_per_tok", most=count))


def mixture(hidden: int, width: int, among: Experts, *, shared: int = 0, extra: Weights | None = None) -> Part:
    """A router, its experts with a gate each, and perhaps a part that every token passes.

    Args:
        hidden: width of the residual stream.
        width: of each expert.
        among: the experts.
        shared: width of the part that every token passes; 0: there is none.
        extra: whatever else the family has.
    """
    weights = experts(gated(hidden, width), count=among.count, chosen=among.chosen) + linear(hidden, among.count)
    return Part(weights=weights + gated(hidden, shared) + (extra or Weights()), width=among.chosen * width + shared)


def dense_feed(fields: Fields, hidden: int) -> Part:
    """A feed-forward part without experts, as wide as `intermediate_size` says."""
    width = needed(fields, "intermediate_size")
    return Part(weights=gated(hidden, width), width=width)


def qwen_feeds(fields: Fields, sizes: Sizes, *, shared: bool) -> list[Part]:
    """The feed-forward parts of Qwen's mixtures: experts in each `decoder_sparse_step`-th layer, with exceptions.

    Raises:
        ModelError: a field is missing, of the wrong type or out of range.
    """
    step = fields.integer("decoder_sparse_step", default=1)
    plain = frozenset(layer_list(fields, "mlp_only_layers"))
    sparse = [(layer + 1) % step == 0 and layer not in plain for layer in range(sizes.layers)]
    with_experts = qwen_mixture(fields, sizes.hidden, shared=shared) if any(sparse) else Part(weights=Weights())
    without = dense_feed(fields, sizes.hidden) if not all(sparse) else Part(weights=Weights())
    return [with_experts if chooses else without for chooses in sparse]


def qwen_mixture(fields: Fields, hidden: int, *, shared: bool) -> Part:
    """One mixture of Qwen's; the part that every token passes has a gate of its own.

    Raises:
        ModelError: a field is missing, of the wrong type or out of range.
    """
    among = read_experts(fields, "num_experts", "num_local_experts")
    width = needed(fields, "moe_intermediate_size")
    if not shared:
        return mixture(hidden, width, among)
    size = needed(fields, "shared_expert_intermediate_size")
    return mixture(hidden, width, among, shared=size, extra=linear(hidden, 1))


def _mixtral(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=8, head_dim_nullable=True))
    among = read_experts(fields, "num_local_experts", "num_experts")
    feed = mixture(sizes.hidden, needed(fields, "intermediate_size"), among)
    mixer = Part(weights=attention(sizes.hidden, sizes.heads))
    keeps = attention_layers(fields, sizes, windows.everywhere(None))
    return stacked(sizes, keeps, mixer, [feed] * sizes.layers).done()


def _qwen2_moe(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=16, kv_heads_nullable=False))
    bias = fields.flag("qkv_bias", default=True)
    mixer = Part(weights=attention(sizes.hidden, sizes.heads, bias=bias))
    keeps = attention_layers(fields, sizes, windows.every_other_up_to_some_layer)
    return stacked(sizes, keeps, mixer, qwen_feeds(fields, sizes, shared=True)).done()


def _qwen3_moe(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=4, kv_heads_nullable=False))
    bias = fields.flag("attention_bias", default=False)
    projections = attention(sizes.hidden, sizes.heads, bias=bias, bias_out=bias)
    mixer = Part(weights=projections + vectors(2 * sizes.heads.dim))
    keeps = attention_layers(fields, sizes, windows.everywhere_if_used)
    return stacked(sizes, keeps, mixer, qwen_feeds(fields, sizes, shared=False)).done()


def _gpt_oss(fields: Fields) -> Description:
    rules = HeadRules(kv_heads_default=8, head_dim_default=64, head_dim_nullable=True)
    sizes = read_sizes(fields, rules)
    among = read_experts(fields, "num_local_experts", "num_experts")
    width = needed(fields, "intermediate_size")
    each = gated(sizes.hidden, width, bias=True)
    feed = Part(
        weights=experts(each, count=among.count, chosen=among.chosen) + linear(sizes.hidden, among.count, bias=True),
        width=among.chosen * width,
    )
    bias = fields.flag("attention_bias", default=True)
    sinks = vectors(sizes.heads.query)
    mixer = Part(weights=attention(sizes.hidden, sizes.heads, bias=bias, bias_out=bias) + sinks)
    keeps = attention_layers(fields, sizes, windows.all_but_each(2, window=128))
    return stacked(sizes, keeps, mixer, [feed] * sizes.layers).done()


def _llama4(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=8, head_dim_default=128, head_dim_nullable=True))
    bias = fields.flag("attention_bias", default=False)
    mixer = Part(weights=attention(sizes.hidden, sizes.heads, bias=bias, bias_out=bias))
    return stacked(sizes, _chunked(fields, sizes), mixer, _llama4_feeds(fields, sizes)).done()


def _chunked(fields: Fields, sizes: Sizes) -> tuple[AttentionLayer, ...]:
    """Layers whose keys are rotated read their own piece of the sequence, the others all of it."""
    null = fields.is_null("attention_chunk_size")
    chunk = None if null else fields.integer("attention_chunk_size", default=8192)
    # Here an empty list counts as none.
    empty = fields.is_set("no_rope_layers") and not fields.items("no_rope_layers")
    values = dict(fields.values) | ({"no_rope_layers": None} if empty else {})
    bare = frozenset(windows.layers_without_rope(replace(fields, values=values), sizes.layers))
    kinds = windows.layer_kinds(fields, sizes.layers, ("full_attention", "chunked_attention"))
    pieces = [kind == "chunked_attention" for kind in kinds] or [layer not in bare for layer in range(sizes.layers)]
    if chunk is None and any(kind == "chunked_attention" for kind in kinds):
        raise fields.fail("attention_chunk_size", "an integer, as layer_types asks for chunked_attention")
    reach = None if chunk is None or chunk >= sizes.positions else chunk
    return tuple(attention_layer(sizes.heads, chunk=reach if piece else None) for piece in pieces)


def _llama4_feeds(fields: Fields, sizes: Sizes) -> list[Part]:
    if fields.is_set("moe_layers"):
        sparse = frozenset(layer_list(fields, "moe_layers"))
    else:
        step = fields.integer("interleave_moe_layer_step", default=1)
        sparse = frozenset(range(step - 1, sizes.layers, step))
    width = needed(fields, "intermediate_size")
    among = read_experts(fields, "num_local_experts", "num_experts")
    with_experts = mixture(sizes.hidden, width, among, shared=width)
    plain = fields.integer("intermediate_size_mlp", default=16_384)
    without = Part(weights=gated(sizes.hidden, plain), width=plain)
    return [with_experts if layer in sparse else without for layer in range(sizes.layers)]


MIXTURES: dict[str, Family] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
}
"""Family by model type."""
