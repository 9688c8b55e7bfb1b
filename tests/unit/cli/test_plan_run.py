"""Flags become a question, whatever is asked; and the answer goes where it should."""

import io
import json

from rich.console import Console

from kvist.cli.main import build_parser
from kvist.cli.plan_run import ask_of, run_plan
from kvist.planner.sharding import Parallel

WORDS = "plan --model m --gpu h200 --gpu-memory 80GiB --gpu-tflops 99.5 --gpu-host-link 32GB --context 131,072"
MORE = "--concurrency 32 --weights 1.5GB --engine kvist --tp 4 --pp 2 --cp 2 --kv-dtype fp8 --state-dtype float32"
REST = "--utilization 0.9 --kv-memory 2GiB --batch-tokens 4_096 --block-tokens 32"


def test_every_flag_is_asked() -> None:
    ask = ask_of(build_parser().parse_args(f"{WORDS} {MORE} {REST}".split()))
    assert (ask.model, ask.gpu.name, ask.gpu.memory) == ("m", "h200", 80 * 2**30)
    assert (ask.gpu.tflops, ask.gpu.host_link) == (99.5, 32 * 10**9)
    assert (ask.context, ask.concurrency, ask.weights, ask.rules) == (131_072, 32, 1_500_000_000, "kvist")
    assert ask.parallel == Parallel(tensor=4, pipeline=2, context=2)
    assert (ask.kv_dtype, ask.state_dtype, ask.utilisation) == ("fp8", "float32", 0.9)
    assert (ask.kv_memory, ask.step_tokens, ask.block_tokens) == (2 * 2**30, 4096, 32)


def test_what_is_not_said_is_left_to_the_engine_and_the_model() -> None:
    ask = ask_of(build_parser().parse_args(["plan", "--model", "m"]))
    assert (ask.gpu.name, ask.gpu.memory, ask.context, ask.utilisation, ask.step_tokens) == (None,) * 5
    assert (ask.kv_dtype, ask.rules, ask.concurrency, ask.parallel) == ("auto", "vllm", 1, Parallel())


def printed(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    args = build_parser().parse_args(["plan", "--model", "llama-3.1-8b", "--gpu", "l4", *words])
    return run_plan(args, Console(file=out, width=100)), out.getvalue()


def test_tables_and_json_say_the_same() -> None:
    status, text = printed("--context", "8192")
    status_json, answer = printed("--context", "8192", "--json")
    found = json.loads(answer)
    assert (status, status_json) == (0, 0)
    assert f"{found['blocks']:,}" in text
    assert f"{found['longest_request_tokens']:,}" in text
    assert f"{found['kv_bytes_per_token']:,} B" in text


def test_commands_to_type_are_not_broken_into_lines() -> None:
    _, text = printed("--context", "8192")
    (line,) = [line for line in text.splitlines() if line.startswith("vLLM: ")]
    assert line.endswith("--max-num-batched-tokens 2048")
