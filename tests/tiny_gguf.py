"""Writes whole GGUF files of about a hundred kilobytes, with random weights, that convert in a tenth of a second."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 64, 2, 4, 2, 32, 96
POSITIONS = 256
EPSILON = 1e-5
ROPE_BASE = 10_000.0
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6


@dataclass
class TinyGguf:
    """What goes into a file; tests change it before `write`.

    Attributes:
        architecture: its name, and the prefix of its metadata.
        fields: metadata under that prefix.
        tokenizer: metadata under ``tokenizer.``.
        tensors: by name, row-major; matrices are stored as Q8_0, the rest as F32.
    """

    architecture: str
    fields: dict[str, object] = field(default_factory=dict)
    tokenizer: dict[str, object] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        """Writes the file."""
        writer = gguf.GGUFWriter(str(path), self.architecture)
        writer.add_name("tiny")
        for key, value in self.fields.items():
            _add(writer, f"{self.architecture}.{key}", value)
        for key, value in self.tokenizer.items():
            _add(writer, f"tokenizer.{key}", value)
        for name, values in self.tensors.items():
            matrix = values.ndim == 2
            kind = gguf.GGMLQuantizationType.Q8_0 if matrix else gguf.GGMLQuantizationType.F32
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


def byte_alphabet() -> list[str]:
    """The 256 characters by which byte-level vocabularies spell bytes, in the order of the bytes."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


def byte_level_tokenizer(rule: str = "smollm") -> dict[str, object]:
    """A vocabulary of three special tokens, all bytes, and runs of up to four spaces."""
    space = byte_alphabet()[32]
    words = [space * 2, space * 4, "h" + "i"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), *words]
    return {
        "ggml.model": "gpt2",
        "ggml.pre": rule,
        "ggml.tokens": tokens,
        "ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3),
        "ggml.merges": [f"{space} {space}", f"{space * 2} {space * 2}", "h i"],
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
        "ggml.padding_token_id": 2,
        "ggml.add_bos_token": False,
        "chat_template": "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    }


def sentencepiece_tokenizer() -> dict[str, object]:
    """A vocabulary as Gemma's: special tokens, all bytes, letters, and a few words."""
    letters = [chr(code) for code in range(33, 127)]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [CONTROL] * 5 + [BYTE] * 256
    words = ["\u2581", *letters, "\n", "\u2581\u2581", "he", "hi", "\u2581hi"]
    tokens, kinds = tokens + words, kinds + [NORMAL] * len(words)
    return {
        "ggml.model": "llama",
        "ggml.pre": "default",
        "ggml.tokens": tokens,
        "ggml.scores": [-float(index) for index in range(len(tokens))],
        "ggml.token_type": kinds,
        "ggml.bos_token_id": 2,
        "ggml.eos_token_id": 1,
        "ggml.unknown_token_id": 3,
        "ggml.padding_token_id": 0,
        "ggml.add_bos_token": True,
        "ggml.add_eos_token": False,
        "ggml.add_space_prefix": False,
    }


def tiny_llama(rule: str = "smollm") -> TinyGguf:
    """A Llama with a byte-level vocabulary, as SmolLM2's."""
    tokenizer = byte_level_tokenizer(rule)
    fields = {**_fields(), "rope.dimension_count": HEAD_DIM, "vocab_size": _vocabulary(tokenizer)}
    return TinyGguf("llama", fields, tokenizer, _tensors(_vocabulary(tokenizer), _layer_shapes()))


def tiny_gemma3() -> TinyGguf:
    """A Gemma 3 with one layer in six that looks back all the way."""
    tokenizer = sentencepiece_tokenizer()
    norms = {"attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,), "post_attention_norm": (HIDDEN,)}
    shapes = _layer_shapes() | norms | {"post_ffw_norm": (HIDDEN,)}
    fields = {**_fields(), "attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM}
    fields |= {"attention.sliding_window": 32, "rope.freq_base": 1_000_000.0, "attention.layer_norm_rms_epsilon": 1e-6}
    return TinyGguf("gemma3", fields, tokenizer, _tensors(_vocabulary(tokenizer), shapes))


def _vocabulary(tokenizer: Mapping[str, object]) -> int:
    tokens = tokenizer["ggml.tokens"]
    assert isinstance(tokens, list)
    return len(tokens)


def _fields() -> dict[str, object]:
    return {
        "block_count": LAYERS,
        "context_length": POSITIONS,
        "embedding_length": HIDDEN,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": EPSILON,
        "rope.freq_base": ROPE_BASE,
    }


def _layer_shapes() -> dict[str, tuple[int, ...]]:
    return {
        "attn_norm": (HIDDEN,),
        "attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FEED_FORWARD, HIDDEN),
        "ffn_up": (FEED_FORWARD, HIDDEN),
        "ffn_down": (HIDDEN, FEED_FORWARD),
    }


def _tensors(vocabulary: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(7)
    wanted: dict[str, tuple[int, ...]] = {"token_embd": (vocabulary, HIDDEN), "output_norm": (HIDDEN,)}
    wanted |= {f"blk.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in shapes.items()}
    return {
        f"{name}.weight": draw.normal(size=shape).astype(np.float32) / 8 + (len(shape) == 1)
        for name, shape in wanted.items()
    }
