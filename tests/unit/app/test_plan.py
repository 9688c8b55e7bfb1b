"""A question is completed with what is known, and answered; what cannot be is one error that names the value."""

import json
from pathlib import Path

import pytest

from kvist.app.engine import read_geometry
from kvist.app.plan import Answer, Ask, GpuAsk, answered, machine_of, words
from kvist.base.errors import ConfigError
from kvist.base.units import Bytes
from kvist.cli.main import build_parser
from kvist.cli.plan_run import ask_of
from kvist.planner.sharding import Parallel
from tiny_families import as_file
from tiny_models import tiny_configs

H200, L4 = GpuAsk(name="h200"), GpuAsk(name="l4")


def about(model: str = "llama-3.1-8b", gpu: GpuAsk = H200, **rest: object) -> Answer:
    return answered(Ask(model=model, gpu=gpu, **rest))  # type: ignore[arg-type]  # tests say which


def test_the_worked_examples_of_every_introduction() -> None:
    # Llama 3 70B in 16 bits: 320 KiB a token, 40 GiB for 131,072 of them.
    large = about("llama-3.1-70b", parallel=Parallel(tensor=4))
    assert large.plan.kv_bytes_per_token == 320 * 2**10
    assert large.plan.kv_bytes_per_request == 40 * 2**30
    # 32 layers, 8 KV heads of 128, 2 bytes: 128 KiB a token, 1 GiB for 8,192, 32 GiB for 32 such requests.
    small = about(context=8192, concurrency=32)
    assert small.plan.kv_bytes_per_token == 128 * 2**10
    assert small.plan.kv_bytes_per_request == 2**30
    assert small.plan.kv_bytes_total == 32 * 2**30
    assert small.plan.fits


def test_what_is_not_said_is_what_the_engine_would_take() -> None:
    asked = about().deployment
    assert (asked.context_tokens, asked.concurrency, asked.utilisation) == (131_072, 1, 0.92)
    assert (asked.form.kv.name, asked.form.conv, asked.form.ssm) == ("bfloat16", "bfloat16", "bfloat16")
    kvist = about("smollm2", GpuAsk(memory=Bytes(8 * 2**30)), rules="kvist").deployment
    assert (kvist.context_tokens, kvist.utilisation, kvist.step_tokens) == (8192, 0.8, 1024)


def test_kvist_takes_no_more_positions_than_its_engine_does(tmp_path: Path) -> None:
    """Beyond its first positions a model of this kind rotates all keys anew, so that none can be kept."""
    (tmp_path / "config.json").write_text(json.dumps(as_file(tiny_configs()["phi3-longrope"])))
    asked = {"model": str(tmp_path), "gpu": GpuAsk(memory=Bytes(2**30))}
    assert about(**asked).deployment.context_tokens == 512
    kvist = about(**asked, rules="kvist")
    assert kvist.deployment.context_tokens == read_geometry(tmp_path).positions_max == 80
    assert kvist.plan.longest_request_tokens == 80
    with pytest.raises(ConfigError, match="longer than the model's 80 positions"):
        about(**asked, rules="kvist", context=81)


@pytest.mark.parametrize(
    ("gpu", "tokens"),
    [
        (H200, 8192),
        (GpuAsk(name="h100-sxm"), 8192),
        (GpuAsk(name="a100-80g"), 2048),
        (L4, 2048),
        (GpuAsk(name="b200"), 16_384),
    ],
)
def test_steps_are_as_long_as_vllm_makes_them_on_such_a_gpu(gpu: GpuAsk, tokens: int) -> None:
    assert about(gpu=gpu).deployment.step_tokens == tokens


def test_what_is_said_counts() -> None:
    asked = about(
        context=1000,
        concurrency=7,
        kv_dtype="fp8",
        state_dtype="float32",
        utilisation=0.5,
        step_tokens=4096,
        block_tokens=32,
        weights=Bytes(10**10),
    ).deployment
    assert (asked.context_tokens, asked.concurrency, asked.utilisation) == (1000, 7, 0.5)
    assert (asked.form.kv.name, asked.form.ssm, asked.step_tokens) == ("fp8", "float32", 4096)
    assert (asked.block_tokens, asked.weights_bytes) == (32, 10**10)


def test_a_gpu_of_the_catalogue_may_be_a_part_of_one() -> None:
    machine, known = machine_of(GpuAsk(name="h200", memory=Bytes(70 * 2**30)), "vllm")
    assert (machine.bytes_total, machine.bytes_per_s, known) == (70 * 2**30, 4.8e12, True)


def test_memory_alone_is_enough_but_for_speeds() -> None:
    answer = about(gpu=GpuAsk(memory=Bytes(80 * 2**30)))
    assert answer.break_even == ()
    assert answer.plan.reserve_bytes_per_rank > 0
    fast = about(gpu=GpuAsk(memory=Bytes(80 * 2**30), tflops=100.0, host_link=Bytes(32 * 10**9)))
    assert [each.medium for each in fast.break_even] == ["dram", "disk", "pool"]
    assert fast.plan == answer.plan


def test_by_kvist_s_rules_memory_alone_is_a_host_s() -> None:
    machine, known = machine_of(GpuAsk(memory=Bytes(2**33)), "kvist")
    assert (machine.host_link_bytes_per_s, known) == (None, False)
    gpu, _ = machine_of(GpuAsk(memory=Bytes(2**33), host_link=Bytes(32 * 10**9)), "kvist")
    assert gpu.host_link_bytes_per_s == 32e9


def test_a_faster_link_makes_loading_worth_it_no_later() -> None:
    slow, fast = (
        about(gpu=GpuAsk(name="h200", host_link=Bytes(link))).break_even[0] for link in (2 * 10**9, 64 * 10**9)
    )
    assert fast.load_s < slow.load_s
    assert fast.tokens is not None
    assert slow.tokens is None or fast.tokens <= slow.tokens


def test_what_does_not_fit_comes_with_what_would() -> None:
    answer = about("llama-3.1-70b", H200)
    assert not answer.plan.fits
    assert answer.remedies
    assert all(change.plan.fits for change in answer.remedies)
    assert about().remedies == ()


def test_weights_that_are_given_replace_those_that_are_counted() -> None:
    counted, given = about(), about(weights=Bytes(4 * 10**9))
    assert counted.plan.weights_bytes == 2 * 8_030_261_248
    assert given.plan.weights_bytes == 4 * 10**9
    assert given.plan.kv_bytes_left_per_rank > counted.plan.kv_bytes_left_per_rank + 11 * 10**9


def test_kv_memory_that_is_given_is_what_is_divided() -> None:
    answer = about(kv_memory=Bytes(2**30), context=4096)
    assert answer.plan.kv_bytes_left_per_rank == 2**30
    assert answer.plan.blocks == (512,)


@pytest.mark.parametrize(
    ("gpu", "rest", "complaint"),
    [
        (GpuAsk(), {}, "on what"),
        (GpuAsk(name="h2oo"), {}, "no GPU 'h2oo'"),
        (GpuAsk(name="h200", tflops=-1.0), {}, "flops_bf16"),
        (H200, {"parallel": Parallel(tensor=3)}, "tensor parallelism of 3"),
        (H200, {"parallel": Parallel(pipeline=33)}, "pipeline parallelism of 33"),
        (H200, {"context": 131_073}, "a context of 131073 tokens is longer than the model's 131072 positions"),
        (H200, {"concurrency": 0}, "concurrency is 0"),
        (
            H200,
            {"concurrency": 32, "step_tokens": 31},
            "a step of 31 tokens cannot compute one for each of 32 requests",
        ),
        (H200, {"kv_dtype": "fp3"}, "KV dtype 'fp3'"),
        (H200, {"kv_dtype": "fp8_ds_mla"}, "latent attention"),
        (H200, {"state_dtype": "fp8"}, "state dtype 'fp8'"),
        (H200, {"utilisation": 1.5}, "utilisation 1.5"),
        (H200, {"block_tokens": 7}, "blocks of 7 tokens"),
        (H200, {"kv_memory": Bytes(2**40)}, "at most 12"),
        (H200, {"rules": "kvist", "parallel": Parallel(tensor=2)}, "computes on one"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_what_cannot_be_is_one_error_with_the_value(gpu: GpuAsk, rest: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        about(gpu=gpu, **rest)


@pytest.mark.parametrize("rules", ["vllm", "kvist"])
def test_a_step_has_a_token_for_each_request(rules: str) -> None:
    asked = about("smollm2", L4, rules=rules, concurrency=3000, context=64).deployment
    assert (asked.concurrency, asked.step_tokens) == (3000, 3000)


@pytest.mark.parametrize(
    "words_asked",
    [
        "--model qwen3-32b --gpu-memory 64GiB --context 8192 --concurrency 8",  # larger ones take longer steps
        "--model qwen3-32b --gpu h100-sxm --context 8192 --concurrency 8 --kv-memory 1GiB",
        "--model llama-3.1-8b --gpu h200 --context 131072 --concurrency 9 --kv-memory 100GiB --utilization 0.5",
        "--model llama-3.1-8b --gpu h100-sxm --context 131072 --concurrency 4 --batch-tokens 300",
        "--model gemma-3-270m --engine kvist --gpu-memory 2GiB --concurrency 300",
        "--model gpt-oss-20b --gpu l4 --context 131072 --concurrency 64",
    ],
)
def test_remedies_fit_when_they_are_typed(words_asked: str) -> None:
    answer = answered(ask_of(build_parser().parse_args(["plan", *words_asked.split()])))
    assert answer.remedies
    for change in answer.remedies:
        typed = build_parser().parse_args(["plan", *words_asked.split(), *words(change).split()])
        assert answered(ask_of(typed)).plan.fits, words(change)


def test_too_small_a_part_of_memory_has_no_remedy_beyond_all_memory_there_is() -> None:
    answer = about(utilisation=1e-300)
    assert not answer.plan.fits
    assert {change.knob for change in answer.remedies} == {"utilisation"}
