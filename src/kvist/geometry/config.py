"""From a parsed `config.json` to a model's geometry.

Knows how a supported model's heads, layers and positions follow from its configuration; which file that came
from is the caller's business. Everything in the file is taken for hostile until it has been read.
"""

from collections.abc import Mapping
from typing import cast, get_args

from kvist.base.errors import ModelError
from kvist.base.units import Tokens
from kvist.geometry.architectures import find_architecture
from kvist.geometry.fields import Fields, show
from kvist.geometry.groups import Dtype, KvGroup, ModelGeometry
from kvist.geometry.heads import HIDDEN_MAX, Heads, read_heads
from kvist.geometry.layers import AttentionLayer, attention_groups
from kvist.geometry.rope import read_rope

_REQUIRED = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)

# Far beyond any model there is, and small enough that a wrong file cannot make us build a huge list.
_LAYERS_MAX = 4096


def geometry_from_config(config: Mapping[str, object]) -> ModelGeometry:
    """Reads a model's geometry from its parsed `config.json`.

    Args:
        config: the file's content, as a JSON parser gives it.

    Returns:
        The geometry. A layer whose window is no shorter than the longest sequence counts as full attention: no
        query could tell the difference. Layers with the same heads and window form a group, those that see
        furthest first; a model that slides everywhere has no full group.

    Raises:
        ModelError: the architecture is not supported, or a field is missing, of the wrong type, out of range
            or at odds with another; the message names the field and its value.
    """
    if not isinstance(config, Mapping):
        raise ModelError(f"config.json: holds {show(config)}; it must hold a mapping of fields")
    return geometry_from_fields(Fields(values=config, source="config.json"))


def geometry_from_fields(fields: Fields) -> ModelGeometry:
    """Does the work of `geometry_from_config` for fields that may have been called something else.

    Raises:
        ModelError: as `geometry_from_config`.
    """
    architecture = find_architecture(fields)
    fields.require(_REQUIRED, architecture.name)
    refuse_what_is_not_decoded_causally(fields)
    layers = read_layer_count(fields)
    heads = read_heads(fields, architecture.head_rules)
    windows = architecture.window_rule(fields, layers)
    rope = read_rope(fields, architecture, windows, heads.dim)
    windows = seen_within(windows, rope.positions_max)
    return ModelGeometry(
        architecture=architecture.name,
        layers=layers,
        query_heads=heads.query,
        hidden_size=fields.integer("hidden_size", most=HIDDEN_MAX),
        vocab_size=fields.integer("vocab_size"),
        positions_max=rope.positions_max,
        groups=_groups(windows, heads),
        rope=rope.parameters,
        dtype=read_dtype(fields),
    )


def read_layer_count(fields: Fields) -> int:
    """The number of decoder layers.

    Raises:
        ModelError: there is no such number.
    """
    return fields.integer("num_hidden_layers", most=_LAYERS_MAX)


def seen_within(windows: tuple[int | None, ...], positions_max: int) -> tuple[int | None, ...]:
    """The windows, without those that no sequence outgrows.

    >>> seen_within((512, 4096, None), 4096)
    (512, None, None)
    """
    return tuple(None if window is None or window >= positions_max else window for window in windows)


def refuse_what_is_not_decoded_causally(fields: Fields) -> None:
    """Turns away what would make the same fields mean another model.

    Raises:
        ModelError: a field says so.
    """
    for key in ("use_bidirectional_attention", "is_encoder_decoder"):
        if fields.is_set(key) and fields.flag(key, default=False):
            raise fields.fail(key, "false: only causal decoders are supported")
    if fields.nested("per_layer_config").values:
        raise fields.fail("per_layer_config", "absent: layers that differ in size are not supported")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if fields.is_set(key):
            fields.number(key)


def _groups(windows: tuple[int | None, ...], heads: Heads) -> tuple[KvGroup, ...]:
    return attention_groups(
        [
            AttentionLayer(
                kv_heads=heads.kv,
                head_dim_k=heads.dim,
                head_dim_v=heads.dim,
                window=None if window is None else Tokens(window),
            )
            for window in windows
        ]
    )


def read_dtype(fields: Fields) -> Dtype:
    """The dtype of the weights; `torch_dtype` is what `dtype` used to be called.

    Raises:
        ModelError: it is none that is known.
    """
    key = "dtype" if fields.is_set("dtype") else "torch_dtype"
    if not fields.is_set(key):
        return "float32"
    name = fields.text(key)
    if name not in get_args(Dtype):
        raise fields.fail(key, f"one of {', '.join(get_args(Dtype))}")
    return cast("Dtype", name)
