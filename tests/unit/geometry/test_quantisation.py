"""How many bits a weight takes, in the words of each quantiser."""

import math
from typing import Any

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.fields import Fields
from kvist.geometry.quantisation import dtype_unsaid, mean_bits, only_experts_quantised, quantised_bits


def of(**values: Any) -> Fields:
    return Fields(values={"quantization_config": values}, source="config.json")


def compressed(*weights: dict[str, Any]) -> Fields:
    groups = {f"group_{index}": {"weights": each} for index, each in enumerate(weights)}
    return of(quant_method="compressed-tensors", config_groups=groups)


@pytest.mark.parametrize(
    ("fields", "bits"),
    [
        (Fields(values={}, source="config.json"), None),
        (of(), None),
        (of(quant_method="fp8"), 8.0),
        (of(quant_method="fp8", weight_block_size=[128, 128]), 8.0 + 2**-9),
        (of(quant_method="fbgemm_fp8"), 8.0),
        (of(quant_method="awq", bits=4, group_size=128), 4 + 20 / 128),
        (of(quant_method="gptq", bits=8, group_size=32), 8 + 24 / 32),
        (of(quant_method="gptq", bits=4, group_size=-1), 4.0),
        (of(quant_method="mxfp4"), 4.25),
        (of(quant_method="bitsandbytes", load_in_4bit=True), 4.5),
        (of(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_use_double_quant=True), 4 + 0.125 + 2**-9),
        (of(quant_method="bitsandbytes", load_in_8bit=True), 8.0),
        (of(quant_method="modelopt", quant_algo="NVFP4"), 4.5),
        (of(quant_method="modelopt", quant_algo="FP8"), 8.0),
        (compressed({"num_bits": 4, "group_size": 32}), 4.5),
        (compressed({"num_bits": 4, "group_size": 32, "symmetric": False}), 4.625),
        (compressed({"num_bits": 8, "group_size": None}, {"num_bits": 8}), 8.0),
    ],
)
def test_scales_and_zero_points_are_counted_in(fields: Fields, bits: float | None) -> None:
    assert quantised_bits(fields) == bits


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (of(bits=4), "lacks quantization_config.quant_method, which a quantised model needs"),
        (
            of(quant_method="quip"),
            "quantization_config.quant_method 'quip' is not known; known are fp8, .*give the bytes",
        ),
        (of(quant_method=4), "quant_method is 4; it must be a string"),
        (of(quant_method="awq"), "lacks quantization_config.bits, which awq needs"),
        (of(quant_method="awq", bits=0), "bits is 0"),
        (of(quant_method="gptq", bits=4, group_size=0), "group_size is 0"),
        (of(quant_method="fp8", weight_block_size=[128]), "weight_block_size is a list of 1"),
        (of(quant_method="fp8", weight_block_size=[0, math.nan]), r"weight_block_size\[0\] is 0"),
        (of(quant_method="bitsandbytes", load_in_4bit="yes"), "load_in_4bit is 'yes'"),
        (of(quant_method="modelopt", quant_algo="W4A8"), "quant_algo is 'W4A8'; it must be one of FP8, NVFP4"),
        (of(quant_method="compressed-tensors"), "lacks quantization_config.config_groups"),
        (of(quant_method="compressed-tensors", config_groups={}), "holds 0 sizes of weights"),
        (compressed({"num_bits": 4}, {"num_bits": 8}), "holds 2 sizes of weights"),
        (compressed({}), "lacks quantization_config.config_groups.group_0.weights.num_bits"),
    ],
)
def test_what_is_not_known_is_refused(fields: Fields, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        quantised_bits(fields)


def test_attention_left_alone_means_that_only_experts_are_quantised() -> None:
    assert only_experts_quantised(of(modules_to_not_convert=["model.layers.*.self_attn", "lm_head"]))
    assert only_experts_quantised(of(ignore=["lm_head", "re:.*self_attn.*"]))
    assert not only_experts_quantised(of(ignore=["lm_head", 4], modules_to_not_convert=None))
    assert not only_experts_quantised(of())
    with pytest.raises(ModelError, match="ignore is 'lm_head'; it must be a list"):
        only_experts_quantised(of(ignore="lm_head"))


def test_only_a_format_that_implies_a_dtype_says_it() -> None:
    assert dtype_unsaid(of(quant_method="mxfp4")) == "bfloat16"
    assert dtype_unsaid(of(quant_method="awq", bits=4)) is None
    told = Fields(values={"quantization_config": {"quant_method": "mxfp4"}, "torch_dtype": "float16"}, source="x")
    assert dtype_unsaid(told) is None


def test_the_mean_lies_between_the_quantised_and_the_dtype() -> None:
    assert mean_bits(4.0, "float16", quantised=10, total=10) == 4.0
    assert mean_bits(4.0, "float16", quantised=0, total=10) == 16.0
    assert mean_bits(4.0, "float32", quantised=5, total=10) == 18.0
