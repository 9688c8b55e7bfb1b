"""Whether a GGUF can be converted without losing anything, judged before and after.

Knows which architectures the conversion carries faithfully, and which facts of a GGUF must be found again in the
converted configuration. What cannot be carried is refused by name: a model that answers a little wrongly is worse
than one that is not served. Plain functions over plain data.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvist.base.errors import ModelError
from kvist.engine.backends.gguf_header import ArrayField, GgufHeader

ARCHITECTURES = ("gemma2", "gemma3", "llama", "phi3", "qwen2", "qwen3")
"""Values of ``general.architecture`` that are converted; Mistral calls itself llama."""

CONVERTER_VERSION = 1
"""Part of what a converted model is known by; raised when the same GGUF would give other files."""

CONVERTED_DTYPE = "bfloat16"

TOKENIZER_BYTES_MAX = 64 * 2**20
"""What all files but the weights take together; the largest vocabularies need about half of it."""

_REMEDY = "use the model's Hugging Face directory (safetensors) with --model DIR"

_CARRIED: Mapping[str, str] = MappingProxyType(
    {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    }
)
"""GGUF key under the architecture's prefix -> the name in config.json that must have the same value."""

_BOUNDS: Mapping[str, int] = MappingProxyType(
    {
        "context_length": 2**31,
        "feed_forward_length": 2**24,
        "attention.head_count": 2**12,
        "attention.head_count_kv": 2**12,
        "attention.key_length": 2**12,
        "attention.value_length": 2**12,
        "rope.dimension_count": 2**12,
    }
)
"""Largest values that are taken for real; tables are allocated from some of them."""

_LAYER = re.compile(r"blk\.(\d{1,5})\.")


def check_convertible(header: GgufHeader, path: Path) -> None:
    """Refuses what the conversion would get wrong, and numbers that do not fit the tensors.

    Raises:
        ModelError: names what is wrong with the file, and the way out.
    """
    if header.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{path} is of architecture {header.architecture!r}; GGUF files are read of: {known}")
    scaling = header.of_model("rope.scaling.type")
    rope_tensors = [name for name in header.tensors if name.startswith("rope_")]
    if scaling not in (None, "none") or rope_tensors:
        what = rope_tensors[0] if rope_tensors else f"rope.scaling.type = {scaling!r}"
        raise ModelError(f"{path} scales its rope ({what}), which a conversion would lose; {_REMEDY}")
    if header.architecture == "gemma2" and header.of_model("block_count") == 46:
        # Only this size scales its queries by another rule than its head size, and its GGUF does not say so.
        raise ModelError(f"{path} is Gemma 2 27B, whose query scale is not in a GGUF; {_REMEDY}")
    _check_numbers(header, path)


def _check_numbers(header: GgufHeader, path: Path) -> None:
    for key, bound in _BOUNDS.items():
        value = header.of_model(key)
        if value is not None and not (type(value) is int and 0 < value <= bound):
            raise ModelError(f"{path} is damaged: {header.architecture}.{key} is {value!r}, not in 1..{bound}")
    layers = {int(match.group(1)) for name in header.tensors if (match := _LAYER.match(name))}
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{path} is damaged: it has no table of token embeddings (token_embd.weight)")
    stated: dict[str, tuple[object, object]] = {
        "block_count": (header.of_model("block_count"), len(layers)),
        "layers": (layers, set(range(len(layers)))),
        "embedding_length": (header.of_model("embedding_length"), embedding.shape[0]),
        "tokens": (header.array_length("tokenizer.ggml.tokens"), embedding.shape[1]),
    }
    for name, (said, found) in stated.items():
        if said != found:
            raise ModelError(f"{path} is damaged: it says {name} = {said}, but its tensors say {found}")


def bytes_to_convert(header: GgufHeader) -> int:
    """Bytes written while converting, at most: two for each number, the tokenizer, and the tensors as they are."""
    return 2 * header.parameters + TOKENIZER_BYTES_MAX + sum(tensor.size for tensor in header.tensors.values())


def lost_facts(header: GgufHeader, config: Mapping[str, Any]) -> list[str]:
    """What the GGUF says that its converted configuration does not say, one line for each fact.

    Args:
        header: of the file that was converted.
        config: the contents of the config.json that came of it.
    """
    expected = {key: config.get(name) for key, name in _CARRIED.items()}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    expected |= {
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1)),
        "rope.freq_base": rope.get("rope_theta"),
    }
    said = {key: header.of_model(key) for key in expected}
    return [
        f"{key} is {said[key]} in the GGUF and {expected[key]} after conversion"
        for key in expected
        if said[key] is not None and not _equal(said[key], expected[key])
    ]


def refuse_losses(header: GgufHeader, config: Mapping[str, Any], path: Path) -> None:
    """Refuses a conversion that lost facts.

    Raises:
        ModelError: names every fact.
    """
    if lost := lost_facts(header, config):
        raise ModelError(f"{path} can not be converted faithfully: {'; '.join(lost)}; {_REMEDY}")


def _equal(said: object, found: object) -> bool:
    """Whether two numbers are the same to the precision of a float32, in which a GGUF keeps them."""
    if isinstance(said, ArrayField | str) or not isinstance(said, int | float) or not isinstance(found, int | float):
        return False
    return math.isclose(said, found, rel_tol=1e-6)
