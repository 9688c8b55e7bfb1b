"""What real vLLMs said of their KV memory, how they had been started, and the plan that must have their figures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvist.app.plan import Answer, Ask, GpuAsk, answered
from kvist.app.plan_check import checked
from kvist.app.plan_reported import Reported, read_reported
from kvist.base.units import Bytes

RECORDED = Path(__file__).parents[1] / "recorded" / "vllm-0.32-kv-memory.json"
MODELS = ("smollm2", "gemma3-270m")

STARTED: Mapping[str, tuple[str, ...]] = {
    "bytes": (),
    "blocks": ("--block-size", "128", "--kv-cache-memory-bytes", "536870912"),
    "steps": ("--max-num-batched-tokens", "512", "--max-model-len", "4096", "--kv-cache-memory-bytes", "123456789"),
    "fp8": ("--kv-cache-dtype", "fp8_e4m3"),
}
"""Flags of vLLM by name of the case, beside those of `under_vllm.server.VllmSettings`."""

_PLANNED: Mapping[str, Mapping[str, Any]] = {
    "bytes": {},
    "blocks": {"block_tokens": 128, "kv_memory": Bytes(2**29)},
    "steps": {"step_tokens": 256, "context": 4096, "kv_memory": Bytes(123_456_789)},
    "fp8": {"kv_dtype": "fp8"},
}
"""The same for the planner."""

_ALL: Mapping[str, Any] = {
    "context": 8192,
    "block_tokens": 32,
    # A CPU's vLLM computes steps of 2,048 tokens one at a time; the planner takes it that two overlap.
    "step_tokens": 1024,
    "kv_memory": Bytes(2**30),
}


def planned(model: str, case: str) -> Answer:
    """The plan for a server that was started so.

    Args:
        model: a name of the catalogue, or a directory.
        case: of `STARTED`.
    """
    fields = dict(_ALL) | dict(_PLANNED[case])
    return answered(Ask(model=model, gpu=GpuAsk(memory=Bytes(16 * 2**30)), **fields))


def recorded() -> dict[tuple[str, str], Reported]:
    """What was said, by model and case."""
    return {(each["model"], each["case"]): _read(each) for each in _all()}


def answers_of(model: str, case: str) -> dict[str, tuple[int, bytes]]:
    """The same as a server's answers, for `fakes.told`."""
    (said,) = [each for each in _all() if (each["model"], each["case"]) == (model, case)]
    return {
        "/metrics": (200, _metrics(said).encode()),
        "/version": (200, json.dumps({"version": said["version"]}).encode()),
        "/v1/models": (200, json.dumps({"data": [{"max_model_len": said["max_model_len"]}]}).encode()),
    }


def check_equal(answer: Answer, reported: Reported) -> None:
    """All figures that a vLLM reports are those of the plan: blocks, their bytes, tokens, and requests at once."""
    check = checked(answer, reported)
    assert (check.reasons, check.doubts) == ((), ())
    numbers = {row.name: row.difference for row in check.rows if row.difference is not None}
    assert numbers == {
        "context_tokens": 0,
        "block_tokens": 0,
        "blocks": 0,
        "kv_bytes": 0,
        "tokens_capacity": 0,
        "concurrency_printed": 0,
    }


def _all() -> list[dict[str, Any]]:
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def _metrics(said: Mapping[str, Any]) -> str:
    return "".join(f"{line}\n" for line in said["metrics"])


def _read(said: Mapping[str, Any]) -> Reported:
    tokens, version = said["max_model_len"], said["version"]
    return read_reported(_metrics(said), "http://recorded", version=version, tokens_max=tokens)
