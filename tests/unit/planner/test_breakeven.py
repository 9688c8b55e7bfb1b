"""When loading pays, by the models that the fabric decides with."""

from dataclasses import replace

import pytest

from kvist.base.units import Tokens
from kvist.cost.load import load_model
from kvist.planner.breakeven import MEDIA, BreakEven, attention_width, break_even, load_of, prefill_of
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.sharding import Parallel
from kvist.planner.useful import useful_bytes
from planned_models import GEMMA3_270M, LLAMA_8B, LLAMA_70B, SMOLLM2, machine_of

BF16 = KvFormat(kv=kv_dtype("bfloat16"))
LARGE = Deployment(model=LLAMA_70B, machine=machine_of(139.8), form=BF16, context_tokens=Tokens(131_072))
SMALL = replace(
    LARGE,
    model=SMOLLM2,
    machine=replace(machine_of(16, link=None), flops_bf16=1e11, flops_fp8=None),
    context_tokens=Tokens(8192),
    rules="kvist",
    step_tokens=512,
)


def wins(deployment: Deployment, each: BreakEven, tokens: int) -> bool:
    """Whether loading so many tokens is faster than computing them, on one accelerator."""
    nbytes = useful_bytes(deployment.model.layers, deployment.form, tokens)
    return load_of(deployment, each.medium).predict_s(nbytes) < prefill_of(deployment).predict_s(0, tokens)


@pytest.mark.parametrize(
    "deployment", [LARGE, SMALL, replace(LARGE, model=LLAMA_8B), replace(SMALL, model=GEMMA3_270M)]
)
def test_from_there_on_loading_wins_and_just_before_it_does_not(deployment: Deployment) -> None:
    answers = break_even(deployment)
    assert [each.medium for each in answers] == list(MEDIA)
    for each in answers:
        longest = deployment.context_tokens
        assert each.load_s == load_of(deployment, each.medium).predict_s(
            useful_bytes(deployment.model.layers, deployment.form, longest)
        )
        assert each.prefill_s == prefill_of(deployment).predict_s(0, longest)
        if each.tokens is None:
            assert not wins(deployment, each, longest)
            continue
        assert all(wins(deployment, each, tokens) for tokens in range(each.tokens, longest + 1, 16 * 64))
        assert each.tokens == 16 or not wins(deployment, each, each.tokens - 16)


def test_slower_tiers_pay_later() -> None:
    dram, disk, pool = break_even(LARGE)
    assert dram.tokens is not None
    assert disk.tokens is not None
    assert dram.tokens < disk.tokens
    assert pool.tokens is None


def test_memory_is_as_fast_as_the_link_and_disks_are_shared() -> None:
    assert load_of(LARGE, "dram").bandwidth == pytest.approx(64e9)
    slow = replace(LARGE, machine=machine_of(80, link=1e9))
    assert [load_of(slow, medium).bandwidth for medium in MEDIA] == pytest.approx([1e9, 1e9, 0.4e9])
    four = replace(LARGE, parallel=Parallel(tensor=4))
    assert [load_of(four, medium).bandwidth for medium in MEDIA] == pytest.approx([64e9, 1.5e9 / 4, 1e8])
    assert [load_of(SMALL, medium) for medium in MEDIA] == [load_model(medium) for medium in MEDIA]


def test_a_cache_of_small_models_pays_on_a_cpu_from_the_first_block() -> None:
    assert [each.tokens for each in break_even(SMALL)] == [16, 16, 16]


def test_computing_takes_all_accelerators_at_the_speed_of_the_weights() -> None:
    one = prefill_of(LARGE).predict_s(0, 8192)
    assert one == pytest.approx(2 * 8192 * 69.5e9 / 989e12, rel=0.1)
    assert prefill_of(replace(LARGE, parallel=Parallel(tensor=8))).predict_s(0, 8192) == pytest.approx(
        one / 8, rel=0.02
    )
    for bits, faster in ((8.0, 2.0), (8.25, 2.0), (4.25, 1.0), (16.0, 1.0)):
        quantised = replace(LARGE, model=replace(LLAMA_70B, weight_bits=bits))
        assert one / prefill_of(quantised).predict_s(0, 8192) == pytest.approx(faster, rel=0.01)


def test_only_layers_that_see_everything_grow_slower_with_length() -> None:
    assert attention_width(LLAMA_70B) == 80 * 64 * 128
    assert attention_width(GEMMA3_270M) == 3 * 4 * 256
