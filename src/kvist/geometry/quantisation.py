"""How many bits a weight takes where the configuration says that weights are quantised.

Reads the words of the quantisers; scales and zero points are counted in. What a quantiser leaves alone (embeddings,
and attention where it says so) keeps the model's dtype.
"""

import re
from collections.abc import Callable

from kvist.base.errors import ModelError
from kvist.geometry.fields import Fields, show
from kvist.geometry.groups import DTYPE_BYTES, Dtype

_SCALE_BITS = 16
_GROUP_MAX = 2**20


def quantised_bits(fields: Fields) -> float | None:
    """Bits of one quantised weight; None where the configuration names no quantisation.

    Raises:
        ModelError: the quantisation is not known, or a field of it is missing or out of range.

    >>> quantised_bits(Fields(values={"quantization_config": {"quant_method": "mxfp4"}}, source="config.json"))
    4.25
    """
    quantiser = fields.nested("quantization_config")
    if not quantiser.values:
        return None
    quantiser.require(["quant_method"], "a quantised model")
    method = quantiser.text("quant_method")
    if method not in _METHODS:
        raise ModelError(
            f"{fields.source}: {quantiser.name('quant_method')} {show(method)} is not known; known are"
            f" {', '.join(_METHODS)}; give the bytes of the weights instead"
        )
    return _METHODS[method](quantiser)


def only_experts_quantised(fields: Fields) -> bool:
    """Whether the quantiser says that it leaves attention alone, as it does for large mixtures of experts.

    Raises:
        ModelError: what it leaves alone is no list.
    """
    quantiser = fields.nested("quantization_config")
    keys = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
    left = [entry for key in keys if quantiser.is_set(key) for entry in quantiser.items(key)]
    return any(isinstance(entry, str) and re.search(r"self_attn|attention", entry) for entry in left)


def dtype_unsaid(fields: Fields) -> Dtype | None:
    """The dtype of what is not quantised, where the quantisation implies it and nothing else says it."""
    method = fields.nested("quantization_config").values.get("quant_method")
    told = fields.is_set("dtype") or fields.is_set("torch_dtype")
    return "bfloat16" if method == "mxfp4" and not told else None


def mean_bits(bits: float, dtype: Dtype, *, quantised: int, total: int) -> float:
    """Bits per weight over a whole model, of which a part is quantised.

    >>> mean_bits(4.0, "bfloat16", quantised=3, total=4)
    7.0
    """
    return (bits * quantised + 8 * DTYPE_BYTES[dtype] * (total - quantised)) / total


def _grouped(quantiser: Fields, bits: int, *, zeros: bool) -> float:
    """Bits with a scale, and perhaps a zero point, for each group of weights; -1 or null: a group is a whole row."""
    key = "group_size"
    if not quantiser.is_set(key) or quantiser.values[key] == -1:
        return float(bits)
    return bits + (_SCALE_BITS + (bits if zeros else 0)) / quantiser.integer(key, most=_GROUP_MAX)


def _integers(quantiser: Fields) -> float:
    quantiser.require(["bits"], quantiser.text("quant_method"))
    return _grouped(quantiser, quantiser.integer("bits", most=16), zeros=True)


def _eight_bit_floats(quantiser: Fields) -> float:
    key = "weight_block_size"
    if not quantiser.is_set(key):
        return 8.0
    rows, columns = quantiser.numbers(key, count=2)
    return 8.0 + 32 / (rows * columns)


def _four_bit_floats(quantiser: Fields) -> float:
    del quantiser  # a format of fixed size: 32 numbers of 4 bits and a scale of 8
    return 4 + 8 / 32


def _bits_and_bytes(quantiser: Fields) -> float:
    if not quantiser.flag("load_in_4bit", default=False):
        return 8.0
    # A scale of 32 bits for 64 weights; quantised again, one of 8 bits, and one of 32 for 256 of those.
    twice = quantiser.flag("bnb_4bit_use_double_quant", default=False)
    return 4 + (8 / 64 + 32 / (64 * 256) if twice else 32 / 64)


def _compressed(quantiser: Fields) -> float:
    quantiser.require(["config_groups"], "compressed-tensors")
    groups = quantiser.nested("config_groups")
    bits = {_compressed_group(groups.nested(name).nested("weights")) for name in groups.values}
    if len(bits) != 1:
        raise ModelError(
            f"{quantiser.source}: {quantiser.name('config_groups')} holds {len(bits)} sizes of weights, and which of"
            " them is used where cannot be told; give the bytes of the weights instead"
        )
    return bits.pop()


def _compressed_group(weights: Fields) -> float:
    weights.require(["num_bits"], "compressed-tensors")
    bits = weights.integer("num_bits", most=16)
    return _grouped(weights, bits, zeros=not weights.flag("symmetric", default=True))


def _modelopt(quantiser: Fields) -> float:
    quantiser.require(["quant_algo"], "modelopt")
    algorithm = quantiser.text("quant_algo")
    sizes = {"FP8": 8.0, "NVFP4": 4 + 8 / 16}
    if algorithm not in sizes:
        raise quantiser.fail("quant_algo", f"one of {', '.join(sizes)}, or the bytes of the weights given instead")
    return sizes[algorithm]


_METHODS: dict[str, Callable[[Fields], float]] = {
    "fp8": _eight_bit_floats,
    "fbgemm_fp8": _eight_bit_floats,
    "awq": _integers,
    "gptq": _integers,
    "mxfp4": _four_bit_floats,
    "bitsandbytes": _bits_and_bytes,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}
