"""What is typed for each engine asks it for what was planned, and never for more memory."""

import itertools
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from kvist.app.plan import Answer, Ask, GpuAsk, answered
from kvist.app.plan_flags import EngineFlags, engine_flags
from kvist.app.published_models import published_models
from kvist.base.units import Bytes
from kvist.cli.main import build_parser
from kvist.planner.sharding import Parallel


def about(model: str = "qwen3-8b", gpu: str = "h200", **rest: object) -> Answer:
    return answered(Ask(model=model, gpu=GpuAsk(name=gpu), **rest))  # type: ignore[arg-type]  # tests say which


def flags_of(answer: Answer) -> dict[str, EngineFlags]:
    return {each.engine: each for each in engine_flags(answer)}


def options(flags: EngineFlags) -> dict[str, str]:
    assert flags.command is not None
    words = shlex.split(flags.command)
    return {word: value for word, value in itertools.pairwise(words) if word.startswith("--")}


def test_every_engine_is_told_the_length_the_number_and_the_memory() -> None:
    found = flags_of(about(context=32_768, concurrency=8, step_tokens=4096))
    assert options(found["vLLM"]) == {
        "--gpu-memory-utilization": "0.92",
        "--max-model-len": "32768",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "4096",
    }
    sglang = options(found["SGLang"])
    assert (sglang["--context-length"], sglang["--max-running-requests"]) == ("32768", "8")
    tensorrt = options(found["TensorRT-LLM"])
    assert (tensorrt["--max_seq_len"], tensorrt["--max_batch_size"]) == ("32768", "8")
    kvist = options(found["Kvist"])
    assert (kvist["--model-tokens-max"], kvist["--sequences-max"]) == ("32768", "8")


@pytest.mark.parametrize("gpu", ["l4", "l40s", "a100-80g", "h200", "mi325x"])
def test_fractions_of_memory_are_each_engine_s_own_and_take_no_more(gpu: str) -> None:
    answer = about(gpu=gpu, context=1024)
    plan, total = answer.plan, answer.deployment.machine.bytes_total
    used = plan.weights_bytes_per_rank + plan.workspace_bytes_per_rank + plan.reserve_bytes_per_rank
    found = flags_of(answer)
    static = float(options(found["SGLang"])["--mem-fraction-static"])
    free = float(options(found["TensorRT-LLM"])["--kv_cache_free_gpu_memory_fraction"])
    exact_static = (plan.weights_bytes_per_rank + plan.kv_bytes_left_per_rank) / total
    exact_free = plan.kv_bytes_left_per_rank / (total - used)
    assert 0 <= exact_static - static < 0.001
    assert 0 <= exact_free - free < 0.001
    assert 0 < static < 1
    assert 0 < free < 1


def test_parallelism_and_the_dtype_of_kv_are_said_in_each_engine_s_words() -> None:
    found = flags_of(about("llama-3.1-70b", kv_dtype="fp8", parallel=Parallel(tensor=2, pipeline=2)))
    assert options(found["vLLM"])["--tensor-parallel-size"] == "2"
    assert options(found["vLLM"])["--pipeline-parallel-size"] == "2"
    assert options(found["vLLM"])["--kv-cache-dtype"] == "fp8"
    assert options(found["SGLang"])["--kv-cache-dtype"] == "fp8_e4m3"
    assert "dtype: fp8}" in found["TensorRT-LLM"].note
    assert found["Kvist"].command is None
    assert "one accelerator" in found["Kvist"].note


def test_context_parallelism_is_said_where_there_is_some() -> None:
    answer = about("llama-3.1-8b", parallel=Parallel(tensor=16, context=2), context=8192)
    found = flags_of(answer)
    assert options(found["vLLM"])["--decode-context-parallel-size"] == "2"
    assert options(found["SGLang"])["--dcp-size"] == "2"
    assert found["TensorRT-LLM"].command is None
    assert "context" in found["TensorRT-LLM"].note


def test_float32_is_said_where_engines_would_narrow_it(tmp_path: Path) -> None:
    config = {**published_models()["smollm2-135m"].config, "torch_dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    answer = about(str(tmp_path))
    assert answer.plan.kv_bytes_per_token == 2 * 23_040
    found = flags_of(answer)
    assert options(found["vLLM"])["--dtype"] == options(found["SGLang"])["--dtype"] == "float32"
    assert "--dtype" not in options(flags_of(about("smollm2"))["vLLM"])


@pytest.mark.parametrize("dtype", ["int8_per_token_head", "int4_per_token_head", "fp8_ds_mla"])
def test_nobody_is_told_to_type_a_dtype_that_vllm_does_not_start_with(dtype: str) -> None:
    eight = Parallel(tensor=8)
    found = flags_of(about("deepseek-v3", kv_dtype=dtype, parallel=eight))["vLLM"]
    assert found.command is None
    assert dtype in found.note
    assert options(flags_of(about("deepseek-v3", kv_dtype="fp8", parallel=eight))["vLLM"])["--kv-cache-dtype"] == "fp8"


def test_gguf_files_are_typed_for_those_that_read_them() -> None:
    answer = about("smollm2")
    found = flags_of(replace(answer, model=replace(answer.model, given="/m/a.GGUF", own="/m/a.GGUF")))
    assert "vllm-gguf-plugin" in found["vLLM"].note
    assert found["TensorRT-LLM"].command is None
    assert found["Kvist"].command is not None


def test_an_engine_that_has_no_such_dtype_says_so() -> None:
    found = flags_of(about(kv_dtype="int8_per_token_head"))
    assert options(found["vLLM"])["--kv-cache-dtype"] == "int8_per_token_head"
    for engine in ("SGLang", "TensorRT-LLM"):
        assert found[engine].command is None
        assert "int8_per_token_head" in found[engine].note


def test_bytes_that_were_asked_for_are_asked_for() -> None:
    found = flags_of(about(kv_memory=Bytes(10 * 2**30), context=8192))
    assert options(found["vLLM"])["--kv-cache-memory-bytes"] == str(10 * 2**30)
    assert options(found["Kvist"])["--kv-memory"] == "10240MiB"


def test_what_does_not_fit_is_served_as_far_as_it_does() -> None:
    answer = about("llama-3.1-8b", "l4", context=131_072, concurrency=4)
    longest = answer.plan.longest_request_tokens
    assert not answer.plan.fits
    assert 1024 < longest < 131_072
    found = options(flags_of(answer)["vLLM"])
    assert (found["--max-model-len"], found["--max-num-seqs"]) == (str(longest), "1")


def test_where_nothing_fits_there_is_nothing_to_type() -> None:
    assert engine_flags(about("llama-3.1-405b", "l4")) == ()


def test_kvist_takes_what_it_is_told() -> None:
    command = flags_of(about("smollm2", "l4"))["Kvist"].command
    assert command is not None
    args = build_parser().parse_args(shlex.split(command)[1:])
    assert (args.command, args.model, args.device) == ("serve", "smollm2", "cuda")


def test_models_that_kvist_s_engine_does_not_serve_are_told() -> None:
    note = flags_of(about("gpt-oss-20b"))["Kvist"].note
    assert "does not serve gpt_oss" in note


def test_names_of_files_are_quoted() -> None:
    answer, odd = about("smollm2"), "/a b; rm -rf /"
    for each in engine_flags(replace(answer, model=replace(answer.model, given=odd, own=odd))):
        assert each.command is not None
        assert odd in shlex.split(each.command)


def test_models_of_the_catalogue_have_the_names_that_engines_know() -> None:
    found = flags_of(about("smollm2"))
    assert found["vLLM"].command is not None
    assert found["vLLM"].command.startswith("vllm serve HuggingFaceTB/SmolLM2-135M-Instruct ")
