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


def every_other_layer(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """The first layer, the third, and so on (Gemma 2)."""
    window = fields.integer("sliding_window", default=4096)
    return _by_types(fields, window, tuple(layer % 2 == 0 for layer in range(layers)))


def all_but_every_nth(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """All layers but each `sliding_window_pattern`-th (Gemma 3)."""
    window = fields.integer("sliding_window", default=4096)
    pattern = fields.integer("sliding_window_pattern", default=6)
    return _by_types(fields, window, tuple((layer + 1) % pattern != 0 for layer in range(layers)))


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
    if not fields.is_set("layer_types"):
        return ()
    types = fields.items("layer_types")
    if len(types) != layers or any(not isinstance(kind, str) or kind not in _SLIDING for kind in types):
        raise fields.fail("layer_types", f"a list of {layers} items, each one of {', '.join(_SLIDING)}")
    return tuple(_SLIDING[str(kind)] for kind in types)
