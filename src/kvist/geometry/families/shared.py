"""Gemma 3n: its last layers read the keys and values of earlier ones, and every layer has embeddings of its own."""

from kvist.base.errors import ModelError
from kvist.geometry import windows
from kvist.geometry.families.parts import (
    Decoder,
    Description,
    Family,
    Part,
    Sizes,
    attention_layers,
    needed,
    read_sizes,
)
from kvist.geometry.fields import Fields
from kvist.geometry.heads import HeadRules
from kvist.geometry.layers import AttentionLayer, KvLayer, SharedLayer
from kvist.geometry.weights import Weights, attention, gated, linear, table, vectors

_RULES = HeadRules(kv_heads_default=2, kv_heads_nullable=False, head_dim_default=256, heads_divide_hidden=True)


def _gemma3n(fields: Fields) -> Description:
    sizes = read_sizes(fields, _RULES)
    own, streams = needed(fields, "hidden_size_per_layer_input"), needed(fields, "altup_num_inputs", most=64)
    keeps = attention_layers(fields, sizes, windows.all_but_each(5, window=512))
    extra = _between_streams(sizes.hidden, streams) + _low_rank(sizes.hidden, needed(fields, "laurel_rank"))
    extra += linear(sizes.hidden, own) + linear(own, sizes.hidden) + vectors(sizes.hidden)
    widths = _widths(fields, sizes.layers)
    decoder = Decoder(sizes=sizes, norms=4)
    for keep, width in zip(_with_shared(fields, keeps), widths, strict=True):
        mixer = Part(weights=_attention(fields, sizes, owns=isinstance(keep, AttentionLayer)))
        decoder.add(keep, mixer, Part(weights=gated(sizes.hidden, width) + extra, width=width))
    return decoder.done(*_outside(fields, sizes, own, streams), tied=True)


def _with_shared(fields: Fields, keeps: tuple[AttentionLayer, ...]) -> list[KvLayer]:
    """The layers, the last so many of which read the last one before them that sees as far as they do."""
    shared = needed(fields, "num_kv_shared_layers", least=0, most=len(keeps) - 1)
    first = len(keeps) - shared
    last = {layer.window: index for index, layer in enumerate(keeps[:first])}
    if any(layer.window not in last for layer in keeps[first:]):
        raise ModelError(
            f"{fields.source}: {fields.name('num_kv_shared_layers')} {shared} leaves a kind of layer in layer_types"
            " without one whose keys and values it could read"
        )
    return [*keeps[:first], *(SharedLayer(source=last[layer.window]) for layer in keeps[first:])]


def _attention(fields: Fields, sizes: Sizes, *, owns: bool) -> Weights:
    bias, heads = fields.flag("attention_bias", default=False), sizes.heads
    if owns:
        return attention(sizes.hidden, heads, bias=bias, bias_out=bias) + vectors(2 * heads.dim)
    queries = heads.query * heads.dim
    return linear(sizes.hidden, queries, bias=bias) + linear(queries, sizes.hidden, bias=bias) + vectors(heads.dim)


def _between_streams(hidden: int, streams: int) -> Weights:
    """What predicts and corrects the parallel residual streams around a layer."""
    return linear(streams, streams + streams**2) + linear(hidden, streams) + vectors(2 * hidden)


def _low_rank(hidden: int, rank: int) -> Weights:
    return linear(hidden, rank) + linear(rank, hidden) + vectors(hidden)


def _outside(fields: Fields, sizes: Sizes, own: int, streams: int) -> tuple[Weights, ...]:
    """The layers' own embeddings, and what leads into and out of the streams."""
    rows = needed(fields, "vocab_size_per_layer_input")
    inner = linear(sizes.hidden, sizes.layers * own) + vectors(own)
    between = vectors(2 * (streams - 1) * sizes.hidden**2)
    return table(rows, sizes.layers * own), inner, between


def _widths(fields: Fields, layers: int) -> tuple[int, ...]:
    """Widths of the feed-forward parts: one for all, or one for each layer."""
    key = "intermediate_size"
    if not isinstance(fields.values.get(key), list | tuple):
        return (needed(fields, key),) * layers
    each = fields.listed(key, count=layers, wanted=f"an integer, or a list of {layers}")
    return tuple(each.integer(str(index)) for index in range(layers))


SHARED: dict[str, Family] = {"gemma3n_text": _gemma3n}
"""Family by model type."""
