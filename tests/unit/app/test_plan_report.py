"""The answer as JSON has every figure that was promised, each under a name with its unit."""

import json
from dataclasses import fields

from kvist.app.plan import Answer, Ask, GpuAsk, answered
from kvist.app.plan_report import report
from kvist.base.units import Bytes
from kvist.planner.plan import Plan

PROMISED = {
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_rank",
    "kv_bytes_per_request",
    "kv_bytes_total",
    "weights_bytes",
    "blocks",
    "tokens_capacity",
    "concurrent_requests",
    "longest_request_tokens",
    "fits",
}


def about(**rest: object) -> Answer:
    return answered(Ask(**{"model": "gemma-3-4b", "gpu": GpuAsk(name="l4"), **rest}))  # type: ignore[arg-type]  # tests say which


def test_everything_promised_is_there_and_is_json() -> None:
    answer = about(context=4096)
    found = json.loads(json.dumps(report(answer), allow_nan=False))
    assert found.keys() >= PROMISED
    assert found.keys() >= {each.name for each in fields(Plan)}
    assert found["fits"] is True
    assert found["kv_bytes_per_token"] == answer.plan.kv_bytes_per_token == 34 * 4 * 512 * 2
    assert found["longest_request_tokens"] == answer.plan.longest_request_tokens


def test_the_question_is_there_with_every_default() -> None:
    found = report(about())
    assert (found["model"], found["engine"], found["gpu"]) == ("gemma-3-4b", "vllm", "l4")
    assert (found["context_tokens"], found["concurrency"], found["kv_dtype"]) == (131_072, 1, "bfloat16")
    assert found["utilization"] == 0.92
    assert report(about(kv_memory=Bytes(2**30)))["utilization"] is None


def test_blocks_are_one_number_and_those_of_each_pool() -> None:
    one = report(about(context=4096))
    assert one["blocks_per_pool"] == [one["blocks"]]
    two = report(about(rules="kvist", context=4096))
    pools = two["blocks_per_pool"]
    assert isinstance(pools, list)
    assert len(pools) == 2
    assert two["blocks"] == sum(pools)


def test_changes_remedies_tiers_and_flags_are_lists() -> None:
    found = report(about(concurrency=1000))
    for name in ("changes", "remedies", "break_even", "flags"):
        rows = found[name]
        assert isinstance(rows, list)
        assert rows
    remedies = found["remedies"]
    assert isinstance(remedies, list)
    assert all(row["fits"] for row in remedies)
    assert {"change", "to", "concurrent_requests"} <= remedies[0].keys()
