"""Families in which some layers keep a state per sequence instead of keys and values of every token.

The state is what an engine keeps between two tokens: of a convolution over k tokens the inputs of the last k - 1.
"""

from collections.abc import Sequence

from kvist.base.errors import ModelError
from kvist.geometry.families.mixtures import dense_feed, mixture, qwen_feeds, qwen_mixture, read_experts
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
from kvist.geometry.fields import Fields
from kvist.geometry.heads import HeadRules
from kvist.geometry.layers import RecurrentLayer, StateTensor
from kvist.geometry.weights import Weights, attention, causal_convolution, linear, vectors
from kvist.geometry.windows import layer_kinds

_DIM_MAX, _KERNEL_MAX = 2**24, 4096

_LINEAR, _FULL = "linear_attention", "full_attention"


def _layers_with(
    sizes: Sizes, *, full: Sequence[bool], mixers: tuple[Part, Part], recurrent: RecurrentLayer, feeds: Sequence[Part]
) -> Decoder:
    """Layers that are full attention where told, else recurrent."""
    decoder = Decoder(sizes=sizes, norms=2)
    keeps, (attends, recurs) = attention_layer(sizes.heads), mixers
    for is_full, feed in zip(full, feeds, strict=True):
        decoder.add(*((keeps, attends) if is_full else (recurrent, recurs)), feed)
    return decoder


def _kernel(fields: Fields, key: str, default: int) -> int:
    return fields.integer(key, default=default, least=2, most=_KERNEL_MAX)


# Gated delta nets: Qwen3-Next and after.


def _delta_net(fields: Fields, sizes: Sizes) -> tuple[RecurrentLayer, Part]:
    """What such a layer keeps, and its weights, whose split into matrices differs between versions."""
    kernel = _kernel(fields, "linear_conv_kernel_dim", 4)
    keys, values = needed(fields, "linear_num_key_heads"), needed(fields, "linear_num_value_heads")
    dim_k = needed(fields, "linear_key_head_dim", most=_DIM_MAX)
    dim_v = needed(fields, "linear_value_head_dim", most=_DIM_MAX)
    channels = 2 * keys * dim_k + values * dim_v
    inner = linear(sizes.hidden, channels + values * dim_v + 2 * values) + causal_convolution(channels, kernel)
    weights = inner + vectors(2 * values + dim_v) + linear(values * dim_v, sizes.hidden)
    conv = StateTensor(name="conv", shape=(channels, kernel - 1))
    return RecurrentLayer(tensors=(conv, StateTensor(name="ssm", shape=(values, dim_v, dim_k)))), Part(weights=weights)


def _qwen_full(fields: Fields, sizes: Sizes) -> list[bool]:
    kinds = layer_kinds(fields, sizes.layers, (_LINEAR, _FULL))
    each = fields.integer("full_attention_interval", default=4)
    return [kind == _FULL for kind in kinds] or [(layer + 1) % each == 0 for layer in range(sizes.layers)]


def _qwen_hybrid(fields: Fields, sizes: Sizes, feeds: Sequence[Part]) -> Description:
    bias = fields.flag("attention_bias", default=False)
    projections = attention(sizes.hidden, sizes.heads, bias=bias, bias_out=bias, gate=True)
    attends = Part(weights=projections + vectors(2 * sizes.heads.dim))
    recurrent, recurs = _delta_net(fields, sizes)
    full = _qwen_full(fields, sizes)
    return _layers_with(sizes, full=full, mixers=(attends, recurs), recurrent=recurrent, feeds=feeds).done()


def _qwen3_next(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=2, kv_heads_nullable=False, head_dim_default=256))
    return _qwen_hybrid(fields, sizes, qwen_feeds(fields, sizes, shared=True))


def _qwen3_5(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=4, kv_heads_nullable=False, head_dim_default=256))
    return _qwen_hybrid(fields, sizes, [dense_feed(fields, sizes.hidden)] * sizes.layers)


def _qwen3_5_moe(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=2, kv_heads_nullable=False, head_dim_default=256))
    return _qwen_hybrid(fields, sizes, [qwen_mixture(fields, sizes.hidden, shared=True)] * sizes.layers)


# Mamba, first and second kind.


def _mamba_one(fields: Fields, sizes: Sizes) -> tuple[RecurrentLayer, Part]:
    kernel, state = _kernel(fields, "mamba_d_conv", 4), fields.integer("mamba_d_state", default=16, most=_DIM_MAX)
    inner = fields.integer("mamba_expand", default=2, most=4096) * sizes.hidden
    automatic = not fields.has("mamba_dt_rank") or fields.values["mamba_dt_rank"] == "auto"
    rank = -(-sizes.hidden // 16) if automatic else fields.integer("mamba_dt_rank", most=_DIM_MAX)
    bias = fields.flag("mamba_proj_bias", default=False)
    convolution = causal_convolution(inner, kernel, bias=fields.flag("mamba_conv_bias", default=True))
    matrices = linear(sizes.hidden, 2 * inner, bias=bias) + linear(inner, rank + 2 * state)
    matrices += linear(rank, inner, bias=True) + linear(inner, sizes.hidden, bias=bias)
    weights = matrices + convolution + vectors(inner * state + inner + rank + 2 * state)
    conv = StateTensor(name="conv", shape=(inner, kernel - 1))
    return RecurrentLayer(tensors=(conv, StateTensor(name="ssm", shape=(inner, state)))), Part(weights=weights)


def _jamba(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=8))
    period = fields.integer("attn_layer_period", default=8)
    offset = fields.integer("attn_layer_offset", default=4, least=0, most=period - 1)
    recurrent, recurs = _mamba_one(fields, sizes)
    return _layers_with(
        sizes,
        full=[layer % period == offset for layer in range(sizes.layers)],
        mixers=(Part(weights=attention(sizes.hidden, sizes.heads)), recurs),
        recurrent=recurrent,
        feeds=_jamba_feeds(fields, sizes),
    ).done()


def _jamba_feeds(fields: Fields, sizes: Sizes) -> list[Part]:
    without = dense_feed(fields, sizes.hidden)
    period = fields.integer("expert_layer_period", default=2)
    offset = fields.integer("expert_layer_offset", default=1, least=0, most=period - 1)
    if needed(fields, "num_experts", "num_local_experts") == 1:
        return [without] * sizes.layers
    among = read_experts(fields, "num_experts", "num_local_experts")
    with_experts = mixture(sizes.hidden, without.width, among)
    return [with_experts if layer % period == offset else without for layer in range(sizes.layers)]


def mamba_two(
    fields: Fields, sizes: Sizes, *, heads: tuple[int, int], keys: tuple[str, str, str], biases: tuple[bool, bool]
) -> tuple[RecurrentLayer, Part]:
    """What a Mamba-2 layer keeps, and its weights.

    Args:
        fields: of the model.
        sizes: of the model.
        heads: how many heads, and numbers per head.
        keys: the fields with the size of the state, the number of groups and the length of the convolution.
        biases: of the projections, and of the convolution.

    Raises:
        ModelError: a field is missing, of the wrong type or out of range.
    """
    (count, dim), (state_key, groups_key, kernel_key) = heads, keys
    state, groups = needed(fields, state_key, most=_DIM_MAX), needed(fields, groups_key, most=count)
    fields.require([kernel_key], fields.text("model_type"))
    kernel, inner = _kernel(fields, kernel_key, 4), count * dim
    channels = inner + 2 * groups * state
    matrices = linear(sizes.hidden, inner + channels + count, bias=biases[0])
    matrices += linear(inner, sizes.hidden, bias=biases[0])
    weights = matrices + causal_convolution(channels, kernel, bias=biases[1]) + vectors(3 * count + inner)
    conv = StateTensor(name="conv", shape=(channels, kernel - 1))
    return RecurrentLayer(tensors=(conv, StateTensor(name="ssm", shape=(count, dim, state)))), Part(weights=weights)


def _bamba(fields: Fields) -> Description:
    sizes = read_sizes(fields, HeadRules(kv_heads_default=8))
    count = needed(fields, "mamba_n_heads", most=_DIM_MAX)
    inner = needed(fields, "mamba_expand", most=4096) * sizes.hidden
    if inner % count:
        raise ModelError(
            f"{fields.source}: {fields.name('mamba_expand')} x {fields.name('hidden_size')} is {inner}, which is not"
            f" a multiple of {fields.name('mamba_n_heads')} {count}"
        )
    biases = fields.flag("mamba_proj_bias", default=False), fields.flag("mamba_conv_bias", default=True)
    recurrent, recurs = mamba_two(
        fields,
        sizes,
        heads=(count, inner // count),
        keys=("mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
        biases=biases,
    )
    bias = fields.flag("attention_bias", default=False)
    attends = Part(weights=attention(sizes.hidden, sizes.heads, bias=bias, bias_out=bias))
    chosen, feeds = frozenset(layer_list(fields, "attn_layer_indices")), [_bamba_feed(fields, sizes)] * sizes.layers
    full = [layer in chosen for layer in range(sizes.layers)]
    return _layers_with(sizes, full=full, mixers=(attends, recurs), recurrent=recurrent, feeds=feeds).done()


def _bamba_feed(fields: Fields, sizes: Sizes) -> Part:
    plain, biased = dense_feed(fields, sizes.hidden), fields.flag("mlp_bias", default=False)
    biases = vectors(2 * plain.width + sizes.hidden) if biased else Weights()
    return Part(weights=plain.weights + biases, width=plain.width)


STATES: dict[str, Family] = {
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe_text": _qwen3_5_moe,
    "jamba": _jamba,
    "bamba": _bamba,
}
"""Family by model type."""
