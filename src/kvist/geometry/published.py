"""From a published configuration to what every layer keeps: everything that can be planned for.

Reads the language model of what was published: towers for images and sound are no part of the layers, and their
weights are not counted. Layers that predict further tokens for speculation are not counted either. What is unknown
is refused with a list of what is known.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kvist.base.errors import ModelError
from kvist.base.units import Tokens
from kvist.geometry.config import read_dtype, refuse_what_is_not_decoded_causally
from kvist.geometry.families.dense import DENSE
from kvist.geometry.families.latent import LATENT
from kvist.geometry.families.mixtures import MIXTURES
from kvist.geometry.families.parts import Description, Family
from kvist.geometry.families.pieces import PIECES
from kvist.geometry.families.shared import SHARED
from kvist.geometry.families.states import STATES
from kvist.geometry.fields import Fields, show
from kvist.geometry.gguf_layers import fields_from_gguf
from kvist.geometry.groups import Dtype
from kvist.geometry.layers import ModelLayers, Parameters
from kvist.geometry.quantisation import dtype_unsaid, mean_bits, only_experts_quantised, quantised_bits

FAMILIES: dict[str, Family] = DENSE | MIXTURES | LATENT | STATES | PIECES | SHARED
"""How to read a configuration, by its `model_type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrapping:
    """A configuration that holds a language model's in its `text_config`.

    Attributes:
        model_type: of the inner one, where it does not say.
        unsaid: fields that published files leave to the defaults of the configuration class.
    """

    model_type: str
    unsaid: Mapping[str, object] = field(default_factory=dict)


_GEMMA3 = {"num_attention_heads": 8, "vocab_size": 262_208, "max_position_embeddings": 131_072}

WRAPPINGS = {
    "gemma3": _Wrapping(model_type="gemma3_text", unsaid=_GEMMA3),
    "gemma3n": _Wrapping(model_type="gemma3n_text"),
    "kimi_k25": _Wrapping(model_type="deepseek_v3"),
    "llama4": _Wrapping(model_type="llama4_text"),
    "mistral3": _Wrapping(model_type="mistral"),
    "qwen3_5": _Wrapping(model_type="qwen3_5_text"),
    "qwen3_5_moe": _Wrapping(model_type="qwen3_5_moe_text"),
}
"""Model types of configurations that hold another, and what that one is."""


def model_layers(config: Mapping[str, object], *, weights_known: bool = False) -> ModelLayers:
    """Reads what planning needs from a model's parsed `config.json`.

    Args:
        config: the file's content, as a JSON parser gives it.
        weights_known: whether the caller knows how many bytes the weights take; then the configuration's
            quantisation goes unread, and may be one that is not known here.

    Raises:
        ModelError: the family or its quantisation is not known, or a field is missing, of the wrong type, out of
            range or at odds with another; the message names the field and its value.
    """
    if not isinstance(config, Mapping):
        raise ModelError(f"config.json: holds {show(config)}; it must hold a mapping of fields")
    outer = Fields(values=config, source="config.json")
    outer.require(["model_type"], "every model")
    wrapping = WRAPPINGS.get(outer.text("model_type"))
    return _read(outer, outer if wrapping is None else _inner(outer, wrapping), weights_known=weights_known)


def model_layers_from_gguf(metadata: Mapping[str, object], *, tensor_names: Collection[str]) -> ModelLayers:
    """Reads what planning needs from a GGUF file's metadata; how many bytes its weights take, its tensors tell.

    Args:
        metadata: values by key, as plain Python values (integers, floats, strings, booleans, lists).
        tensor_names: names of all tensors in the file.

    Raises:
        ModelError: as `model_layers`.
    """
    fields = fields_from_gguf(metadata, tensor_names=tensor_names)
    return _read(fields, fields, weights_known=True)


def _inner(outer: Fields, wrapping: _Wrapping) -> Fields:
    outer.require(["text_config"], outer.text("model_type"))
    inner = outer.nested("text_config")
    values = {"model_type": wrapping.model_type} | dict(wrapping.unsaid) | dict(inner.values)
    return Fields(values=values, source=inner.source, prefix=inner.prefix)


def _read(outer: Fields, fields: Fields, *, weights_known: bool) -> ModelLayers:
    model_type = fields.text("model_type")
    if model_type not in FAMILIES:
        known = ", ".join(sorted({*FAMILIES, *WRAPPINGS}))
        raise ModelError(
            f"{fields.source}: {fields.name('model_type')} {show(model_type)} is not known to the planner; known"
            f" are {known}"
        )
    refuse_what_is_not_decoded_causally(fields)
    description = FAMILIES[model_type](fields)
    vocab_size = fields.integer("vocab_size")
    parameters = _parameters(description, vocab_size, tied=_tied(outer, fields, description))
    dtype = _dtype(outer, fields)
    return ModelLayers(
        model_type=model_type,
        layers=description.layers,
        hidden_size=description.sizes.hidden,
        query_heads=description.sizes.heads.query,
        head_dim=description.sizes.heads.dim,
        intermediate_size=description.widest,
        vocab_size=vocab_size,
        positions_max=Tokens(description.sizes.positions),
        dtype=dtype,
        weight_bits=None if weights_known else _weight_bits((outer, fields), description, parameters, dtype),
        parameters=parameters,
    )


def _tied(outer: Fields, fields: Fields, description: Description) -> bool:
    """Whether input and output embedding are one; the outer configuration has the say where there are two."""
    holder = next((each for each in (outer, fields) if each.has(description.tied_key)), fields)
    return holder.flag(description.tied_key, default=description.tied)


def _parameters(description: Description, vocab_size: int, *, tied: bool) -> Parameters:
    one, weights = vocab_size * description.sizes.hidden, description.weights
    both = one if tied else 2 * one
    # The input embedding is a table of which a token reads one row; as the output embedding it is multiplied with.
    return Parameters(
        total=weights.total + both,
        active=weights.total - weights.idle + one,
        embedding=weights.tables + both,
    )


def _dtype(outer: Fields, fields: Fields) -> Dtype:
    told = any(fields.is_set(key) for key in ("dtype", "torch_dtype"))
    holder = fields if told else outer
    return dtype_unsaid(holder) or read_dtype(holder)


def _weight_bits(
    both: tuple[Fields, Fields], description: Description, parameters: Parameters, dtype: Dtype
) -> float | None:
    """Bits per weight outside of the embeddings, as the quantisation says."""
    holder = next((each for each in both if each.is_set("quantization_config")), both[0])
    bits = quantised_bits(holder)
    if bits is None:
        return None
    inner, chosen_among = parameters.total - parameters.embedding, description.weights.experts
    quantised = chosen_among if chosen_among and only_experts_quantised(holder) else inner
    return mean_bits(bits, dtype, quantised=quantised, total=inner)
