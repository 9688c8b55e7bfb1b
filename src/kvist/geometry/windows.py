"""Which layers look back only so far, and how far: one rule per way that models say it.

A rule gives for each layer its window in positions, the query's own included, or None for all positions: a query
at position p sees the keys in (p - window, p]. That is the mask which transformers builds from the same
configuration, and the rules follow its configuration classes, defaults included. Where a configuration says
one thing with its layer types and another with its window, transformers either fails later or masks what it
does not tell the attention; here it is refused.
"""

from collections.abc import Callable

from kvist.base.errors import ModelError
from kvist.geometry.fields import Fields

WindowRule = Callable[[Fields, int], tuple[int | None, ...]]
"""From the fields of a model and its number of layers to the window of each layer."""

_SLIDING = {"full_attention": False, "sliding_attention": True}


def never(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """No layer has a window (Llama)."""
    return _agreed(fields, (None,) * layers)


def everywhere(default: int | None) -> WindowRule:
    """All layers share one window, when there is one (Mistral, Phi-3)."""

    def rule(fields: Fields, layers: int) -> tuple[int | None, ...]:
        return _agreed(fields, (_window(fields, default),) * layers)

    return rule


def from_some_layer_on(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Layers from `max_window_layers` on, if `use_sliding_window` says so (Qwen2, Qwen3)."""
    used = fields.flag("use_sliding_window", default=False)
    window = _window(fields, 4096) if used else None
    first = fields.integer("max_window_layers", default=28, least=0) if window else layers
    return _by_types(fields, window, tuple(layer >= first for layer in range(layers)))


def all_but_each(nth: int, *, window: int = 4096, nth_key: str | None = None) -> WindowRule:
    """All layers but each so-manieth.

    Args:
        nth: which layers see everything, where nothing else is said.
        window: of the others, where nothing else is said.
        nth_key: the field that says another number than `nth`; None: there is none.
    """

    def rule(fields: Fields, layers: int) -> tuple[int | None, ...]:
        own = fields.integer("sliding_window", default=window)
        each = nth if nth_key is None else fields.integer(nth_key, default=nth)
        return _by_types(fields, own, tuple((layer + 1) % each != 0 for layer in range(layers)))

    return rule


every_other_layer = all_but_each(2)
"""The first layer, the third, and so on (Gemma 2)."""

all_but_every_nth = all_but_each(6, nth_key="sliding_window_pattern")
"""All layers but each `sliding_window_pattern`-th (Gemma 3)."""


def everywhere_if_used(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """All layers share one window, if `use_sliding_window` says so (Qwen3 with experts)."""
    used = fields.flag("use_sliding_window", default=False)
    return _agreed(fields, (_window(fields, 4096) if used else None,) * layers)


def every_other_up_to_some_layer(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Every other layer below `max_window_layers`, if `use_sliding_window` says so (Qwen2 with experts)."""
    used = fields.flag("use_sliding_window", default=False)
    window = _window(fields, 4096) if used else None
    last = fields.integer("max_window_layers", default=28, least=0) if window else 0
    return _by_types(fields, window, tuple(layer < last and layer % 2 == 0 for layer in range(layers)))


def where_nothing_rotates(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Layers without rotary positions, if `use_sliding_window` says so (SmolLM3)."""
    used = fields.flag("use_sliding_window", default=False)
    window = _window(fields, None) if used else None
    bare = layers_without_rope(fields, layers)
    return _by_types(fields, window, tuple(window is not None and layer in bare for layer in range(layers)))


def layers_without_rope(fields: Fields, layers: int) -> tuple[int, ...]:
    """Layers whose keys are not rotated: zeros in `no_rope_layers`, else every `no_rope_layer_interval`-th.

    Raises:
        ModelError: the list is too short or holds something else than 0 and 1, or the interval is no count.
    """
    if not fields.is_set("no_rope_layers"):
        interval = fields.integer("no_rope_layer_interval", default=4)
        return tuple(layer for layer in range(layers) if (layer + 1) % interval == 0)
    rotates = fields.items("no_rope_layers")
    if len(rotates) < layers or any(not isinstance(mark, int) or mark not in (0, 1) for mark in rotates):
        raise fields.fail("no_rope_layers", f"a list of at least {layers} items, each 0 or 1")
    return tuple(layer for layer in range(layers) if not rotates[layer])


def _window(fields: Fields, default: int | None) -> int | None:
    if fields.is_null("sliding_window") or (default is None and not fields.has("sliding_window")):
        return None
    return fields.integer("sliding_window", default=default)


def _by_types(fields: Fields, window: int | None, otherwise: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Windows where `layer_types` says so, or where the model's habit says so if it is silent."""
    sliding = _layer_types(fields, len(otherwise)) or otherwise
    if window is None and any(sliding):
        raise ModelError(
            f"{fields.source}: layer_types asks for sliding_attention, but there is no window for it;"
            " set sliding_window (and use_sliding_window), or make every layer full_attention"
        )
    return tuple(window if slides else None for slides in sliding)


def _agreed(fields: Fields, windows: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The same windows, after a look at `layer_types`, which these models do not read."""
    sliding = _layer_types(fields, len(windows))
    if sliding and sliding != tuple(window is not None for window in windows):
        raise ModelError(
            f"{fields.source}: layer_types contradicts sliding_window, and this architecture reads only"
            " sliding_window; remove layer_types"
        )
    return windows


def _layer_types(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Whether each layer slides according to `layer_types`; empty when that field is absent or null."""
    return tuple(_SLIDING[kind] for kind in layer_kinds(fields, layers, tuple(_SLIDING)))


def layer_kinds(fields: Fields, layers: int, known: tuple[str, ...]) -> tuple[str, ...]:
    """What `layer_types` calls each layer; empty when that field is absent or null.

    Args:
        fields: of the model.
        layers: how many it has.
        known: the kinds that the model may have.

    Raises:
        ModelError: the field is no list with one of these for each layer.
    """
    if not fields.is_set("layer_types"):
        return ()
    kinds = tuple(kind for kind in fields.items("layer_types") if isinstance(kind, str) and kind in known)
    if len(kinds) != layers or len(fields.items("layer_types")) != layers:
        raise fields.fail("layer_types", f"a list of {layers} items, each one of {', '.join(known)}")
    return kinds
