"""Rotary positions as text: everything that a rotated key depends on besides its vector and its position.

The text is part of every block's identity, so it holds what the model will really compute with: defaults filled
in, old spellings (`rope_theta` beside `rope_scaling`) and new ones (`rope_parameters`) reduced to one, fields
that nothing reads left out.

A cached key is reused in sequences of any length, so it may depend on nothing but its position. Two ways of
scaling break that, and bound how long a sequence may grow:

    type       rotation changes when the sequence is longer than     longest sequence
    dynamic    max_position_embeddings                               max_position_embeddings
    longrope   original_max_position_embeddings (short -> long       the smaller of the two
               factors, for all positions at once)
    others     never                                                 max_position_embeddings
"""

from dataclasses import dataclass

from kvist.base.errors import ModelError
from kvist.base.units import Tokens
from kvist.geometry.architectures import Architecture
from kvist.geometry.fields import Fields
from kvist.geometry.windows import layers_without_rope

FULL, SLIDING = "full_attention", "sliding_attention"

_SCALED_BY_FACTOR = ("linear", "dynamic", "yarn", "llama3")
_KNOWS_ORIGINAL_LENGTH = ("yarn", "llama3", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """What rotates a model's keys.

    Attributes:
        parameters: (name, value) pairs, sorted by name.
        positions_max: longest sequence in which a rotated key depends on its position alone.
    """

    parameters: tuple[tuple[str, str], ...]
    positions_max: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rotation:
    """One set of rotary parameters while it is read.

    Attributes:
        fields: the set itself; outer: the configuration around it.
        theta_key: field of `outer` that holds the base if the set does not; theta_default: if neither does.
        only: whether it is the model's only set; only then does the configuration around it give the original
            length.
    """

    fields: Fields
    outer: Fields
    theta_key: str
    theta_default: float
    only: bool


def read_rope(fields: Fields, architecture: Architecture, windows: tuple[int | None, ...], head_dim: int) -> Rope:
    """Reads the rotary parameters of a model.

    Args:
        fields: the model's configuration.
        architecture: how to read it.
        windows: of each layer; their number is the number of layers.
        head_dim: numbers per key head and token.

    Raises:
        ModelError: a parameter is missing, of the wrong type, out of range or not supported.
    """
    longest = fields.integer("max_position_embeddings")
    parameters: dict[str, str] = {}
    for prefix, rotation in _rotations(fields, architecture, windows).items():
        read = _read_rotation(rotation, architecture, head_dim)
        parameters |= {prefix + name: value for name, value in read.items()}
        if read["rope_type"] == "longrope":
            longest = min(longest, int(read["original_max_position_embeddings"]))
    if architecture.leaves_layers_unrotated and (bare := layers_without_rope(fields, len(windows))):
        parameters["layers_without_rope"] = ",".join(map(str, bare))
    return Rope(parameters=tuple(sorted(parameters.items())), positions_max=Tokens(longest))


def _rotations(fields: Fields, architecture: Architecture, windows: tuple[int | None, ...]) -> dict[str, _Rotation]:
    """The sets of rotary parameters that the layers use, by the prefix of their names."""
    if architecture.theta_sliding_default is None:
        return {"": _only_rotation(fields, architecture)}
    both = {
        f"{FULL}.": _full_rotation(fields, architecture.theta_default),
        f"{SLIDING}.": _sliding_rotation(fields, architecture.theta_sliding_default),
    }
    used = {f"{FULL if window is None else SLIDING}." for window in windows}
    return {prefix: rotation for prefix, rotation in both.items() if prefix in used}


def _only_rotation(fields: Fields, architecture: Architecture) -> _Rotation:
    scaling = fields.nested("rope_scaling")
    # An empty rope_scaling counts as none; otherwise it replaces rope_parameters as a whole.
    chosen = scaling if scaling.values else fields.nested("rope_parameters")
    if FULL in chosen.values or SLIDING in chosen.values:
        raise ModelError(
            f"{fields.source}: {chosen.prefix.rstrip('.')} is given by layer type, but {architecture.name}"
            " rotates all layers alike; give one flat set"
        )
    return _Rotation(
        fields=chosen,
        outer=fields,
        theta_key="rope_theta",
        theta_default=architecture.theta_default,
        only=True,
    )


def _full_rotation(fields: Fields, theta_default: float) -> _Rotation:
    own, scaling = _by_layer_type(fields).nested(FULL), fields.nested("rope_scaling")
    # Here the old rope_scaling only adds to the set, which has its rope_type already: `type` in it goes unread.
    values = (dict(own.values) or {"rope_type": "default"}) | dict(scaling.values)
    prefix = scaling.prefix if scaling.values else own.prefix
    inner = Fields(values=values, source=fields.source, prefix=prefix)
    return _Rotation(fields=inner, outer=fields, theta_key="rope_theta", theta_default=theta_default, only=False)


def _sliding_rotation(fields: Fields, theta_default: float) -> _Rotation:
    own = _by_layer_type(fields).nested(SLIDING)
    key = "rope_local_base_freq"
    return _Rotation(fields=own, outer=fields, theta_key=key, theta_default=theta_default, only=False)


def _by_layer_type(fields: Fields) -> Fields:
    sets = fields.nested("rope_parameters")
    if sets.values and FULL not in sets.values and SLIDING not in sets.values:
        raise ModelError(
            f"{fields.source}: {fields.name('rope_parameters')} is flat, which this architecture would not read;"
            f" give a set for {FULL} and one for {SLIDING}"
        )
    return sets


def _rotary_dims(rotation: _Rotation, architecture: Architecture, head_dim: int) -> int:
    """How many numbers of each key are rotated."""
    key = "partial_rotary_factor"
    holder = rotation.fields if rotation.fields.has(key) else rotation.outer
    part = holder.number(key, default=1.0)
    if part > 1.0 or (part < 1.0 and not architecture.rotates_in_part):
        raise holder.fail(key, "at most 1" if architecture.rotates_in_part else f"1 for {architecture.name}")
    dims = int(head_dim * part)
    # An odd part is rounded up by the model; a whole head cannot be.
    if dims < 1 or (dims == head_dim and dims % 2):
        raise ModelError(
            f"{rotation.outer.source}: {dims} of the {head_dim} numbers of a key would be rotated, but rotation"
            " takes them in pairs; head_dim must be even, or partial_rotary_factor another"
        )
    return dims


def _read_rotation(rotation: _Rotation, architecture: Architecture, head_dim: int) -> dict[str, str]:
    fields, outer = rotation.fields, rotation.outer
    dims = _rotary_dims(rotation, architecture, head_dim)
    kind = _rope_type(rotation, architecture)
    theta_holder, theta_key = (fields, "rope_theta") if fields.has("rope_theta") else (outer, rotation.theta_key)
    theta = theta_holder.number(theta_key, default=rotation.theta_default, above=1.0)
    read = {"rope_type": kind, "rope_theta": repr(theta), "rotary_dims": str(dims)}
    if kind in _KNOWS_ORIGINAL_LENGTH:
        read["original_max_position_embeddings"] = str(_original_length(rotation, architecture))
    if kind in _SCALED_BY_FACTOR:
        read["factor"] = repr(_factor(rotation, kind, read))
    if kind == "dynamic":
        read |= _dynamic(rotation, dims)
    elif kind == "llama3":
        read |= _llama3(fields)
    elif kind == "yarn":
        read |= _yarn(fields)
    elif kind == "longrope":
        read |= _longrope(rotation, read, dims)
    return read


def _rope_type(rotation: _Rotation, architecture: Architecture) -> str:
    fields = rotation.fields
    key = "type" if fields.has("type") and not fields.has("rope_type") else "rope_type"
    kind = fields.text(key, default="default")
    if architecture.rotates_in_part and kind in ("su", "yarn"):
        # Phi-3's first releases used these names for what became longrope. "su" came before the original
        # length had a place of its own, and transformers still wants it inside the set.
        if kind == "su":
            fields.require(["original_max_position_embeddings"], "rope type 'su'")
        kind = "longrope"
    if kind not in architecture.rope_types:
        raise fields.fail(key, f"one of {', '.join(architecture.rope_types)} for {architecture.name}")
    return kind


def _original_length(rotation: _Rotation, architecture: Architecture) -> int:
    """Length the model was trained at before its positions were stretched."""
    key = "original_max_position_embeddings"
    if rotation.only and rotation.outer.has(key):
        return rotation.outer.integer(key, least=2)
    if architecture.rotates_in_part:
        return 4096  # the configuration class has this field, with this default, and prefers it to the set's
    return rotation.fields.integer(key, default=rotation.outer.integer("max_position_embeddings"), least=2)


def _factor(rotation: _Rotation, kind: str, read: dict[str, str]) -> float:
    if kind == "yarn" and rotation.fields.is_null("factor"):
        return rotation.outer.integer("max_position_embeddings") / int(read["original_max_position_embeddings"])
    rotation.fields.require(["factor"], f"rope type {kind!r}")
    return rotation.fields.number("factor")


def _dynamic(rotation: _Rotation, dims: int) -> dict[str, str]:
    if dims <= 2:
        raise rotation.fields.fail("rope_type", f"another one: 'dynamic' needs more than {dims} rotated numbers")
    # Within the bound the factor has no effect, save for rounding.
    return {"max_position_embeddings": str(rotation.outer.integer("max_position_embeddings"))}


def _llama3(fields: Fields) -> dict[str, str]:
    fields.require(["low_freq_factor", "high_freq_factor"], "rope type 'llama3'")
    low = fields.number("low_freq_factor")
    high = fields.number("high_freq_factor", above=low)
    return {"low_freq_factor": repr(low), "high_freq_factor": repr(high)}


def _yarn(fields: Fields) -> dict[str, str]:
    read = {"truncate": str(fields.flag("truncate", default=True)).lower()}
    for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        read[key] = repr(fields.number(key) if fields.is_set(key) else default)
    for key in ("attention_factor", "mscale", "mscale_all_dim"):
        if fields.is_set(key):
            read[key] = repr(fields.number(key))
    return read


def _longrope(rotation: _Rotation, read: dict[str, str], dims: int) -> dict[str, str]:
    fields = rotation.fields
    fields.require(["short_factor", "long_factor"], "rope type 'longrope'")
    found = {
        # The long factors come into play beyond the bound only; they are checked and kept because the name of
        # a computation should not change its meaning should the bound be lifted.
        key: ",".join(repr(each) for each in fields.numbers(key, count=dims // 2))
        for key in ("short_factor", "long_factor")
    }
    if fields.is_set("attention_factor"):
        found["attention_factor"] = repr(fields.number("attention_factor"))
    if fields.is_set("factor"):
        found["factor"] = repr(fields.number("factor"))
    else:
        longest = rotation.outer.integer("max_position_embeddings")
        found["factor"] = repr(longest / int(read["original_max_position_embeddings"]))
    return found
