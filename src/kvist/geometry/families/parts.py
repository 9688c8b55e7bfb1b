"""What every family's function works with and hands back.

A decoder is a list of layers, each a mixer (attention or what stands for it), a feed-forward part and norms. A
family says which; the embeddings, which all families have alike, are added in `kvist.geometry.published`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvist.base.units import Tokens
from kvist.geometry.config import read_layer_count, seen_within
from kvist.geometry.fields import INTEGER_MAX, Fields
from kvist.geometry.heads import HIDDEN_MAX, HeadRules, Heads, read_heads
from kvist.geometry.layers import AttentionLayer, KvLayer
from kvist.geometry.weights import Weights, vectors
from kvist.geometry.windows import WindowRule

_REQUIRED = ("hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A mixer or a feed-forward part of one layer.

    Attributes:
        weights: its own, norms of the layer not included.
        width: of a feed-forward part: numbers between its matrices, for one token; 0 for mixers.
    """

    weights: Weights
    width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What all families say in the same words.

    Attributes:
        layers, hidden: number of layers, and width of the residual stream.
        positions: longest sequence.
        heads: of every attention layer.
    """

    layers: int
    hidden: int
    positions: int
    heads: Heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model without its input and output embeddings.

    Attributes:
        sizes: as the configuration gives them.
        layers: what each keeps, first to last.
        widest: of the feed-forward parts.
        weights: of everything but the embeddings.
        tied: whether the output embedding is the input embedding, where the configuration does not say.
        tied_key: the field that says it.
    """

    sizes: Sizes
    layers: tuple[KvLayer, ...]
    widest: int
    weights: Weights
    tied: bool = False
    tied_key: str = "tie_word_embeddings"


Family = Callable[[Fields], Description]
"""Reads one family's configuration; raises ModelError for what is missing, out of range or contradicts itself."""


def read_sizes(fields: Fields, rules: HeadRules, *, layers: int | None = None) -> Sizes:
    """Reads what all families say in the same words; the number of layers, unless it is known otherwise.

    Raises:
        ModelError: a field is missing, of the wrong type or out of range.
    """
    counted = ["num_hidden_layers"] if layers is None else []
    fields.require([*counted, *_REQUIRED], fields.text("model_type"))
    return Sizes(
        layers=read_layer_count(fields) if layers is None else layers,
        hidden=fields.integer("hidden_size", most=HIDDEN_MAX),
        positions=fields.integer("max_position_embeddings"),
        heads=read_heads(fields, rules),
    )


def needed(fields: Fields, *keys: str, least: int = 1, most: int = INTEGER_MAX) -> int:
    """A number that has no default, under whichever of these names it is there.

    Raises:
        ModelError: it is there under none, or is no integer within the bounds.
    """
    key = next((each for each in keys if fields.has(each)), keys[0])
    fields.require([key], fields.text("model_type"))
    return fields.integer(key, least=least, most=most)


def layer_list(fields: Fields, key: str) -> tuple[int, ...]:
    """The layers that a field names; none if it is absent or null.

    Raises:
        ModelError: it is no list of integers.
    """
    items = fields.items(key) if fields.is_set(key) else ()
    layers = tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool))
    if len(layers) != len(items):
        raise fields.fail(key, "a list of layers, each an integer")
    return layers


def attention_layers(fields: Fields, sizes: Sizes, rule: WindowRule) -> tuple[AttentionLayer, ...]:
    """One attention layer for each, with the windows that a rule finds.

    Raises:
        ModelError: the rule refuses the configuration.
    """
    return tuple(
        attention_layer(sizes.heads, window=window)
        for window in seen_within(rule(fields, sizes.layers), sizes.positions)
    )


def attention_layer(heads: Heads, *, window: int | None = None, chunk: int | None = None) -> AttentionLayer:
    """An attention layer of so many heads."""
    return AttentionLayer(
        kv_heads=heads.kv,
        head_dim_k=heads.dim,
        head_dim_v=heads.dim,
        window=None if window is None else Tokens(window),
        chunk=None if chunk is None else Tokens(chunk),
    )


@dataclass(slots=True, kw_only=True)
class Decoder:
    """A model while a family's function puts it together.

    Attributes:
        sizes: as in `Description`.
        norms: vectors of the hidden size that each layer has beside its parts.
    """

    sizes: Sizes
    norms: int
    _layers: list[KvLayer] = field(default_factory=list)
    _weights: Weights = field(default_factory=Weights)
    _widest: int = 0

    def add(self, keeps: KvLayer, *parts: Part) -> None:
        """Puts one more layer on top."""
        self._layers.append(keeps)
        for part in parts:
            self._weights += part.weights
            self._widest = max(self._widest, part.width)
        self._weights += vectors(self.norms * self.sizes.hidden)

    def done(self, *more: Weights, tied: bool = False, tied_key: str = "tie_word_embeddings") -> Description:
        """The whole, with the norm after the last layer and whatever else lies outside of the layers."""
        return Description(
            sizes=self.sizes,
            layers=tuple(self._layers),
            widest=self._widest,
            weights=sum(more, self._weights + vectors(self.sizes.hidden)),
            tied=tied,
            tied_key=tied_key,
        )


def stacked(sizes: Sizes, keeps: Iterable[KvLayer], mixer: Part, feeds: Sequence[Part], *, norms: int = 2) -> Decoder:
    """A decoder whose mixers all have the same weights."""
    decoder = Decoder(sizes=sizes, norms=norms)
    for layer, feed in zip(keeps, feeds, strict=True):
        decoder.add(layer, mixer, feed)
    return decoder
