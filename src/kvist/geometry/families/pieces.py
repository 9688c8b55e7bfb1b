"""Families whose layers are of several kinds, some of which are no attention at all: Nemotron-H and LFM2."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvist.base.units import rounded_up
from kvist.geometry.families.mixtures import dense_feed, mixture, read_experts
from kvist.geometry.families.parts import (
    Decoder,
    Description,
    Family,
    Part,
    Sizes,
    attention_layer,
    layer_list,
    needed,
    read_sizes,
)
from kvist.geometry.families.states import mamba_two
from kvist.geometry.fields import Fields
from kvist.geometry.heads import HeadRules
from kvist.geometry.layers import KvLayer, PlainLayer, RecurrentLayer, StateTensor
from kvist.geometry.weights import Weights, attention, causal_convolution, experts, gated, linear, vectors
from kvist.geometry.windows import layer_kinds

_LAYERS_MAX, _DIM_MAX = 4096, 2**24

_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NAMES = {"linear_attention": "mamba", "full_attention": "attention"} | {kind: kind for kind in _PATTERN.values()}


# Nemotron-H: each layer is one of a state, attention, and two kinds of feed-forward part.


def _nemotron_h(fields: Fields) -> Description:
    kinds = _nemotron_kinds(fields)
    key = "head_dim" if fields.has("head_dim") else "attention_head_dim"  # as the first releases called it
    told = {"head_dim": fields.values[key]} if fields.has(key) else {}
    names = dict(fields.names) | {"head_dim": fields.names.get(key, key)}
    renamed = replace(fields, values=dict(fields.values) | told, names=names)
    sizes = read_sizes(renamed, HeadRules(kv_heads_default=8, head_dim_default=128), layers=len(kinds))
    read = {kind: _NEMOTRON_LAYERS[kind](fields, sizes) for kind in sorted(set(kinds))}
    decoder = Decoder(sizes=sizes, norms=1)
    for kind in kinds:
        keeps, part = read[kind]
        decoder.add(keeps, part)
    return decoder.done()


def _nemotron_kinds(fields: Fields) -> tuple[str, ...]:
    """What each layer is, from a pattern such as `M-M*` or from a list of names."""
    if fields.has("hybrid_override_pattern"):
        key, marks = "hybrid_override_pattern", tuple[object, ...](fields.text("hybrid_override_pattern"))
        names = _PATTERN
    else:
        key = "layers_block_type" if fields.has("layers_block_type") else "layer_types"
        fields.require([key], "nemotron_h without hybrid_override_pattern")
        marks, names = fields.items(key), _NAMES
    kinds = tuple(names[mark] for mark in marks if isinstance(mark, str) and mark in names)
    if not 1 <= len(kinds) <= _LAYERS_MAX or len(kinds) != len(marks):
        raise fields.fail(key, f"1 to {_LAYERS_MAX} layers, each one of {', '.join(names)}")
    if fields.is_set("num_hidden_layers") and fields.integer("num_hidden_layers") != len(kinds):
        raise fields.fail("num_hidden_layers", f"{len(kinds)}, as {fields.name(key)} tells of so many layers")
    return kinds


def _nemotron_attention(fields: Fields, sizes: Sizes) -> tuple[KvLayer, Part]:
    del fields  # no bias and no norm that it could tell of
    return attention_layer(sizes.heads), Part(weights=attention(sizes.hidden, sizes.heads))


def _nemotron_mamba(fields: Fields, sizes: Sizes) -> tuple[KvLayer, Part]:
    heads = needed(fields, "mamba_num_heads", most=_DIM_MAX), needed(fields, "mamba_head_dim", most=_DIM_MAX)
    groups = "mamba_n_groups" if fields.has("mamba_n_groups") else "n_groups"
    kernel = "mamba_d_conv" if fields.has("mamba_d_conv") else "conv_kernel"
    convolution = "mamba_conv_bias" if fields.has("mamba_conv_bias") else "use_conv_bias"
    biases = fields.flag("use_bias", default=False), fields.flag(convolution, default=True)
    return mamba_two(fields, sizes, heads=heads, keys=("ssm_state_size", groups, kernel), biases=biases)


def _nemotron_mlp(fields: Fields, sizes: Sizes) -> tuple[KvLayer, Part]:
    width = needed(fields, "intermediate_size")
    return PlainLayer(), Part(weights=_squared(fields, sizes.hidden, width), width=width)


def _nemotron_moe(fields: Fields, sizes: Sizes) -> tuple[KvLayer, Part]:
    """Experts without a gate, perhaps behind a projection to fewer numbers."""
    among = read_experts(fields, "n_routed_experts", "num_local_experts")
    width = needed(fields, "moe_intermediate_size")
    shared = needed(fields, "moe_shared_expert_intermediate_size")
    weights = linear(sizes.hidden, among.count) + _squared(fields, sizes.hidden, shared)
    inner = sizes.hidden
    if fields.is_set("moe_latent_size"):
        inner, bias = fields.integer("moe_latent_size", most=_DIM_MAX), fields.flag("mlp_bias", default=False)
        weights += linear(sizes.hidden, inner, bias=bias) + linear(inner, sizes.hidden, bias=bias)
    each = linear(inner, width) + linear(width, inner)
    weights += experts(each, count=among.count, chosen=among.chosen)
    return PlainLayer(), Part(weights=weights, width=among.chosen * width + shared)


def _squared(fields: Fields, hidden: int, width: int) -> Weights:
    """A feed-forward part of two matrices, without a gate."""
    bias = fields.flag("mlp_bias", default=False)
    return linear(hidden, width, bias=bias) + linear(width, hidden, bias=bias)


_NEMOTRON_LAYERS: dict[str, Callable[[Fields, Sizes], tuple[KvLayer, Part]]] = {
    "attention": _nemotron_attention,
    "mamba": _nemotron_mamba,
    "mlp": _nemotron_mlp,
    "moe": _nemotron_moe,
}


# LFM2: short convolutions, and attention in some layers.


def _lfm2(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=8))
    return _short_convolutions(fields, sizes, [_lfm2_feed(fields, sizes)] * sizes.layers)


def _lfm2_moe(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=8))
    plain = needed(fields, "num_dense_layers", least=0)
    among = read_experts(fields, "num_experts", "num_local_experts")
    without = dense_feed(fields, sizes.hidden)
    with_experts = mixture(sizes.hidden, needed(fields, "moe_intermediate_size"), among)
    feeds = [without if layer < plain else with_experts for layer in range(sizes.layers)]
    return _short_convolutions(fields, sizes, feeds)


def _short_convolutions(fields: Fields, sizes: Sizes, feeds: Sequence[Part]) -> Description:
    kernel = fields.integer("conv_L_cache", default=3, least=2, most=4096)
    bias = fields.flag("conv_bias", default=False)
    inner = linear(sizes.hidden, 3 * sizes.hidden, bias=bias) + causal_convolution(sizes.hidden, kernel, bias=bias)
    convolves = Part(weights=inner + linear(sizes.hidden, sizes.hidden, bias=bias))
    attends = Part(weights=attention(sizes.hidden, sizes.heads) + vectors(2 * sizes.heads.dim))
    state = RecurrentLayer(tensors=(StateTensor(name="conv", shape=(sizes.hidden, kernel - 1)),))
    decoder = Decoder(sizes=sizes, norms=2)
    for is_full, feed in zip(_attending(fields, sizes), feeds, strict=True):
        decoder.add(attention_layer(sizes.heads) if is_full else state, attends if is_full else convolves, feed)
    key = "tie_embedding" if fields.has("tie_embedding") else "tie_word_embeddings"
    return decoder.done(tied=True, tied_key=key)


def _attending(fields: Fields, sizes: Sizes) -> list[bool]:
    """Which layers are attention, from their kinds or from a list of indices; without either all are."""
    kinds = layer_kinds(fields, sizes.layers, ("full_attention", "conv"))
    if kinds:
        return [kind == "full_attention" for kind in kinds]
    if not fields.is_set("full_attn_idxs"):
        return [True] * sizes.layers
    chosen = frozenset(layer_list(fields, "full_attn_idxs"))
    return [layer in chosen for layer in range(sizes.layers)]


def _lfm2_feed(fields: Fields, sizes: Sizes) -> Part:
    """A gated part whose width is two thirds of what is said, rounded up to a multiple, unless told not to."""
    width = needed(fields, "block_ff_dim" if fields.has("block_ff_dim") else "intermediate_size")
    if fields.flag("block_auto_adjust_ff_dim", default=True):
        width = int(2 * width / 3)
        if not fields.is_null("block_ffn_dim_multiplier"):
            width = int(fields.number("block_ffn_dim_multiplier", default=1.0) * width)
            width = rounded_up(max(1, width), fields.integer("block_multiple_of", default=256))
    return Part(weights=gated(sizes.hidden, width), width=width)


PIECES: dict[str, Family] = {"nemotron_h": _nemotron_h, "lfm2": _lfm2, "lfm2_moe": _lfm2_moe}
"""Family by model type."""
