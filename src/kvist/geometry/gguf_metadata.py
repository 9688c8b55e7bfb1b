"""From the metadata of a GGUF file to a model's geometry.

GGUF says the same things as `config.json` with other words, and leaves out what its runtimes hold in code. Here
the words are translated and the silence is filled in; what it all means is decided in `kvist.geometry.config`,
so that a model has one geometry whichever way it comes. Reading the file itself is not done here.

Scaled rotary positions may hide in tensors that metadata does not mention, hence the second argument. A Mistral
model is written as "llama"; like transformers, which loads the weights, this believes it is one only when
`general.name` is "mistral".
"""

from collections.abc import Collection, Mapping, Sized
from dataclasses import dataclass

from kvist.base.errors import ModelError
from kvist.geometry.config import geometry_from_fields
from kvist.geometry.fields import Fields, show
from kvist.geometry.groups import Dtype, ModelGeometry

_SOURCE = "GGUF metadata"

_MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "smollm3": "smollm3",
}
"""Our model type by GGUF architecture."""

_INTEGER_KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "max_position_embeddings": "context_length",
}
_PER_LAYER_KEYS = {"num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv"}

_HEAD_DIM_IS_TOLD = ("qwen3", "gemma2", "gemma3", "gemma", "qwen3moe", "gpt-oss")
"""Architectures whose head size does not follow from their hidden size; the file has to tell it."""

_THETA_IS_TOLD = ("gemma3", "smollm3")
"""Architectures for which runtimes disagree about the rotary base of a file that does not tell it."""

_SLIDES = ("gemma2", "gemma3", "phi3", "gpt-oss", "cohere2")

_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

_STORED_AS: dict[int, Dtype] = {0: "float32", 1: "float16"}
"""Dtype by `general.file_type` where the file is not quantised; all others are dequantised to bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufReader:
    """Metadata of one architecture while it is translated.

    Attributes:
        values: all metadata.
        architecture: the word that begins the keys of this model.
    """

    values: Mapping[str, object]
    architecture: str

    def key(self, suffix: str) -> str:
        """A key of this model, whole."""
        return f"{self.architecture}.{suffix}"

    def get(self, suffix: str) -> object:
        """Its value; None if it is absent."""
        return self.values.get(self.key(suffix))

    def has(self, suffix: str) -> bool:
        """Whether it is there."""
        return self.key(suffix) in self.values

    def fail(self, suffix: str, wanted: str) -> ModelError:
        """An error about its value, to be raised by the caller."""
        return ModelError(f"{_SOURCE}: {self.key(suffix)} is {show(self.get(suffix))}; it must be {wanted}")


def geometry_from_gguf(metadata: Mapping[str, object], *, tensor_names: Collection[str]) -> ModelGeometry:
    """Reads a model's geometry from a GGUF file's metadata.

    Args:
        metadata: values by key, as plain Python values (integers, floats, strings, booleans, lists).
        tensor_names: names of all tensors in the file.

    Returns:
        The geometry that the model's own `config.json` would give; the dtype is the file's if that is not
        quantised, else bfloat16.

    Raises:
        ModelError: the architecture is not supported, or a key is missing, of the wrong type, out of range or
            at odds with another; the message names the key and its value.
    """
    reader = gguf_reader(metadata, _MODEL_TYPES)
    hidden_rope = sorted(set(_ROPE_TENSORS) & set(tensor_names))
    if hidden_rope:
        raise ModelError(
            f"{_SOURCE}: the file scales its rotary positions with the tensor {hidden_rope[0]}, which cannot be"
            " honoured; use the model's safetensors instead"
        )
    config, names = _translate(reader)
    return geometry_from_fields(Fields(values=config, source=_SOURCE, names=names))


def gguf_reader(metadata: Mapping[str, object], known: Collection[str]) -> GgufReader:
    """Finds the architecture of a file.

    Args:
        metadata: as for `geometry_from_gguf`.
        known: architectures that the caller can read.

    Raises:
        ModelError: the metadata names none of these.
    """
    if not isinstance(metadata, Mapping):
        raise ModelError(f"{_SOURCE}: holds {show(metadata)}; it must hold a mapping of keys")
    whole = Fields(values=metadata, source=_SOURCE)
    whole.require(["general.architecture"], "every model")
    architecture = whole.text("general.architecture")
    if architecture not in known:
        raise ModelError(
            f"{_SOURCE}: general.architecture {show(architecture)} is not supported; supported are {', '.join(known)}"
        )
    return GgufReader(values=metadata, architecture=architecture)


def _translate(reader: GgufReader) -> tuple[dict[str, object], dict[str, str]]:
    """The metadata as a `config.json`, and what each of its fields was called in the file."""
    sizes = translated_sizes(reader, _MODEL_TYPES[reader.architecture])
    if reader.get("expert_count"):
        raise reader.fail("expert_count", "absent or 0: mixtures of experts are not supported")
    return dict(sizes.values) | _rope(reader, sizes), dict(sizes.names)


def translated_sizes(reader: GgufReader, model_type: str) -> Fields:
    """The metadata as the fields of a `config.json`, without its rotary positions.

    Args:
        reader: of the file.
        model_type: what a `config.json` would call the architecture.

    Raises:
        ModelError: a key is missing, of the wrong type or at odds with another.
    """
    is_mistral = model_type == "llama" and reader.values.get("general.name") == "mistral"
    config: dict[str, object] = {
        "model_type": "mistral" if is_mistral else model_type,
        "dtype": _dtype(reader.values),
    }
    names = {ours: reader.key(theirs) for ours, theirs in (_INTEGER_KEYS | _PER_LAYER_KEYS).items()}
    names |= {"vocab_size": reader.key("vocab_size"), "head_dim": reader.key("attention.key_length")}
    names |= {"rope_theta": reader.key("rope.freq_base"), "rope_local_base_freq": reader.key("rope.freq_base_swa")}
    names |= {"rope_scaling": reader.key("rope.scaling"), "sliding_window": reader.key("attention.sliding_window")}
    names |= {"sliding_window_pattern": reader.key("attention.sliding_window_pattern")}
    config |= {ours: reader.get(theirs) for ours, theirs in _INTEGER_KEYS.items() if reader.has(theirs)}
    for ours, theirs in _PER_LAYER_KEYS.items():
        if reader.has(theirs):
            config[ours] = _same_in_all_layers(reader, theirs)
    config |= _vocabulary(reader) | _heads(reader, config) | _windows(reader)
    return Fields(values=config, source=_SOURCE, names=names)


def _same_in_all_layers(reader: GgufReader, suffix: str) -> object:
    """A number that may be given as one per layer, though in the supported architectures all are equal."""
    value = reader.get(suffix)
    if not isinstance(value, list | tuple):
        return value
    if len(value) != reader.get("block_count") or any(each != value[0] for each in value):
        raise reader.fail(suffix, "one number, or a list with the same number for each layer")
    return value[0]


def _vocabulary(reader: GgufReader) -> dict[str, object]:
    if reader.has("vocab_size"):
        return {"vocab_size": reader.get("vocab_size")}
    tokens = reader.values.get("tokenizer.ggml.tokens")
    return {"vocab_size": len(tokens)} if isinstance(tokens, Sized) and not isinstance(tokens, str) else {}


def _heads(reader: GgufReader, config: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    # A file without it means one key/value head per query head, whatever the configuration class would assume.
    if "num_key_value_heads" not in config and "num_attention_heads" in config:
        found["num_key_value_heads"] = config["num_attention_heads"]
    sizes = ["attention.key_length", "attention.value_length"]
    if reader.architecture == "llama":
        sizes.append("rope.dimension_count")  # older files tell the head size by this alone
    told = {suffix: reader.get(suffix) for suffix in sizes if reader.has(suffix)}
    if any(size != next(iter(told.values())) for size in told.values()):
        differing = ", ".join(f"{reader.key(suffix)} {show(size)}" for suffix, size in told.items())
        raise ModelError(f"{_SOURCE}: {differing} differ, which no supported architecture allows")
    if told:
        found["head_dim"] = next(iter(told.values()))
    elif reader.architecture in _HEAD_DIM_IS_TOLD:
        raise ModelError(f"{_SOURCE}: lacks {reader.key('attention.key_length')}, which {reader.architecture} needs")
    return found


def _windows(reader: GgufReader) -> dict[str, object]:
    window, slides = reader.get("attention.sliding_window"), reader.architecture in _SLIDES
    if not slides:
        if window:
            raise reader.fail("attention.sliding_window", f"absent or 0 for {reader.architecture}")
        return {}
    if reader.architecture == "phi3":
        return {"sliding_window": window or None}  # 0 is how such a file says that there is none
    if not reader.has("attention.sliding_window"):
        raise ModelError(
            f"{_SOURCE}: lacks {reader.key('attention.sliding_window')}, which {reader.architecture} needs"
        )
    return {"sliding_window": window} | _pattern(reader)


def _pattern(reader: GgufReader) -> dict[str, object]:
    suffix = "attention.sliding_window_pattern"
    if not reader.has(suffix):
        return {}
    pattern = reader.get(suffix)
    if isinstance(pattern, list | tuple) and all(isinstance(slides, bool) for slides in pattern):
        return {"layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern]}
    if reader.architecture == "gemma2":
        raise reader.fail(suffix, "absent or a list with true or false for each layer")
    return {"sliding_window_pattern": pattern}


def _rope(reader: GgufReader, sizes: Fields) -> dict[str, object]:
    found: dict[str, object] = {}
    if reader.has("rope.freq_base"):
        found["rope_theta"] = reader.get("rope.freq_base")
    elif reader.architecture in _THETA_IS_TOLD:
        raise ModelError(f"{_SOURCE}: lacks {reader.key('rope.freq_base')}, which {reader.architecture} needs")
    if reader.has("rope.freq_base_swa"):
        if reader.architecture != "gemma3":
            raise reader.fail("rope.freq_base_swa", f"absent: {reader.architecture} rotates all layers alike")
        found["rope_local_base_freq"] = reader.get("rope.freq_base_swa")
    if reader.architecture == "phi3":
        found |= _partial_rotation(reader, sizes)
    return found | _scaling(reader)


def _partial_rotation(reader: GgufReader, sizes: Fields) -> dict[str, object]:
    """The rotated part of each head as a fraction, which the file gives as a count."""
    sizes.require(["hidden_size", "num_attention_heads"], reader.architecture)
    head_dim = max(1, sizes.integer("hidden_size") // sizes.integer("num_attention_heads"))
    rotated = Fields(values=reader.values, source=_SOURCE).integer(reader.key("rope.dimension_count"), most=head_dim)
    # The model takes the integer part of fraction x head size; half a number more keeps rounding off the edge.
    return {"partial_rotary_factor": 1.0 if rotated == head_dim else (rotated + 0.5) / head_dim}


def _scaling(reader: GgufReader) -> dict[str, object]:
    """Scaled rotary positions, as far as metadata alone can tell them."""
    if reader.architecture == "phi3":
        # Such a file holds its short and long factors in tensors, and tells by these two lengths that it does.
        context, original = reader.get("context_length"), reader.get("rope.scaling.original_context_length")
        if original not in (None, context):
            raise reader.fail("rope.scaling.original_context_length", "equal to phi3.context_length")
        return {}
    factor = reader.get("rope.scaling.factor")
    # A factor without a type means linear; a factor of 0 or 1 means none.
    kind = reader.get("rope.scaling.type") if reader.has("rope.scaling.type") else "linear"
    if kind == "none" or (kind == "linear" and factor in (None, 0, 1)):
        return {}
    if kind not in ("linear", "yarn"):
        raise reader.fail("rope.scaling.type", "one of none, linear, yarn")
    known = {reader.key(f"rope.scaling.{name}") for name in ("type", "factor", "original_context_length", "finetuned")}
    unknown = [key for key in reader.values if key.startswith(reader.key("rope.scaling.")) and key not in known]
    if unknown:
        raise ModelError(f"{_SOURCE}: {unknown[0]} is {show(reader.values[unknown[0]])}, which cannot be honoured")
    scaling: dict[str, object] = {"rope_type": kind, "factor": factor}
    if kind == "yarn" and reader.has("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = reader.get("rope.scaling.original_context_length")
    return {"rope_scaling": scaling}


def _dtype(metadata: Mapping[str, object]) -> Dtype:
    kind = metadata.get("general.file_type")
    return _STORED_AS.get(kind, "bfloat16") if isinstance(kind, int) else "bfloat16"
