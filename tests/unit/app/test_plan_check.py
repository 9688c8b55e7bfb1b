"""A plan against what servers report: equal to the block for real ones, and every difference has its sentence."""

from dataclasses import replace

import pytest

from fakes.vllm_memory import MODELS, STARTED, check_equal, planned, recorded
from kvist.app.plan import Answer, Ask, GpuAsk, answered
from kvist.app.plan_check import Check, checked
from kvist.app.plan_reported import Reported
from kvist.base.errors import ConfigError
from kvist.base.units import Bytes, Tokens
from kvist.planner.sharding import Parallel

GIB = 2**30
REPORTED = recorded()


def about(model: str = "smollm2", memory: int = 16 * GIB, **rest: object) -> Answer:
    return answered(Ask(model=model, gpu=GpuAsk(memory=Bytes(memory)), **rest))  # type: ignore[arg-type]  # tests say which


def as_reported(answer: Answer, **rest: object) -> Reported:
    """What a vLLM says that was started as planned, and whose memory is as estimated."""
    plan, asked = answer.plan, answer.deployment
    said = Reported(
        url="http://there",
        rules="vllm",
        version="0.32.0",
        tokens_max=asked.context_tokens,
        dtype="auto",
        blocks=plan.blocks,
        block_tokens=asked.block_tokens_asked,
        tokens=plan.tokens_capacity,
        concurrency=plan.concurrency_printed,
        utilisation=asked.utilisation,
        prefix_caching=True,
    )
    return replace(said, **rest)


def by_kvist(**rest: object) -> Answer:
    return about("gemma3-270m", 8 * GIB, rules="kvist", concurrency=16, context=8192, **rest)


def as_kvist_reports(answer: Answer, **rest: object) -> Reported:
    """What Kvist's own server says that was started as planned."""
    plan, asked = answer.plan, answer.deployment
    said = Reported(
        url="http://here",
        rules="kvist",
        version=None,
        tokens_max=Tokens(8192),
        dtype=asked.form.kv.name,
        blocks=plan.blocks,
        block_tokens=16,
        tokens=plan.tokens_capacity,
        kv_bytes=Bytes(sum(count * size for count, size in zip(plan.blocks, plan.block_bytes_per_rank, strict=True))),
        step_tokens=asked.step_tokens,
        sequences_max=asked.concurrency,
        model_tokens_max=asked.context_tokens,
        window_checkpoint_tokens=asked.window_checkpoint_tokens,
        bytes_per_token=plan.kv_bytes_per_token,
        weights_bytes=plan.weights_bytes,
        workspace_bytes=plan.workspace_bytes_per_rank,
    )
    return replace(said, **rest)


def value(check: Check, name: str) -> object:
    return next(row.difference for row in check.rows if row.name == name)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("case", STARTED)
def test_what_a_real_vllm_reports_is_the_plan_to_the_block(name: str, case: str) -> None:
    check_equal(planned(name, case), REPORTED[name, case])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("case", STARTED)
def test_a_plan_with_nothing_said_is_led_to_what_a_real_vllm_reports(name: str, case: str) -> None:
    check = checked(about(name), REPORTED[name, case])
    assert check.doubts == ()
    assert value(check, "blocks") != 0
    assert any(reason.startswith("blocks: planned of 16 tokens, the server has them of") for reason in check.reasons)
    assert any(reason.startswith("KV memory: the plan leaves") for reason in check.reasons)
    assert any("fp8_e4m3" in reason for reason in check.reasons) == (case == "fp8")
    assert any("tokens in flight" in reason for reason in check.reasons) == (name == "gemma3-270m")


def test_a_server_as_planned_has_no_reasons() -> None:
    check = checked(about(), as_reported(about()))
    assert (check.reasons, check.doubts) == ((), ())
    assert {row.difference for row in check.rows} == {0, None}


@pytest.mark.parametrize(
    ("rest", "sentence"),
    [
        ({"utilisation": 0.5}, "memory: planned with utilization 0.92, the server has utilization 0.5"),
        ({"context": 1024}, "longest request: planned for 8,192 tokens, the server takes 1,024"),
        ({"block_tokens": 64}, "blocks: planned of 16 tokens, the server has them of 64"),
        ({"kv_memory": Bytes(GIB)}, "KV memory: the plan leaves"),
    ],
    ids=lambda each: str(each)[:20],
)
def test_a_setting_that_differs_is_named_and_explains_all(rest: dict[str, object], sentence: str) -> None:
    own = about(**rest)
    check = checked(about(), as_reported(own, kv_bytes=own.deployment.kv_bytes))
    (reason,) = check.reasons
    assert reason.startswith(sentence)
    assert check.doubts == ()


def test_fp8_by_another_name_is_no_difference() -> None:
    fp8 = about(kv_dtype="fp8")
    assert checked(fp8, as_reported(fp8, dtype="fp8_e4m3")).reasons == ()


def test_memory_that_was_measured_may_differ_by_a_little_and_not_by_much() -> None:
    answer = about()
    size = answer.plan.block_bytes_per_rank[0]
    little, much = (answer.plan.blocks[0] - part * GIB // (100 * size) for part in (40, 400))
    for blocks, doubts in ((little, 0), (much, 1)):
        own = about(kv_memory=Bytes(blocks * size))
        check = checked(answer, as_reported(own, utilisation=0.92))
        (reason,) = check.reasons
        assert reason.startswith("memory: the server has")
        assert "less for KV than the plan leaves" in reason
        assert len(check.doubts) == doubts


def test_blocks_that_were_given_are_named() -> None:
    own = about(kv_memory=Bytes(34 * 16 * 23_040))
    check = checked(about(), as_reported(own, blocks_given=34))
    assert own.plan.blocks == (34,)
    (reason,) = check.reasons
    assert "told to make 34 blocks" in reason
    assert check.doubts == ()


@pytest.mark.parametrize("tensor", [2, 4])
def test_tensor_parallelism_that_nobody_tells_is_found_by_its_blocks(tensor: int) -> None:
    own = about("llama-3.1-8b", 80 * GIB, parallel=Parallel(tensor=tensor), kv_memory=Bytes(GIB))
    check = checked(about("llama-3.1-8b", 80 * GIB), as_reported(own, kv_bytes=Bytes(GIB)))
    assert any(f"it has the blocks of a tensor parallelism of {tensor}" in reason for reason in check.reasons)
    assert check.doubts == ()


def test_a_dtype_of_the_model_that_nobody_tells_is_found_by_its_blocks() -> None:
    own = about(kv_memory=Bytes(GIB))
    check = checked(
        about(kv_memory=Bytes(GIB)), as_reported(own, kv_bytes=Bytes(GIB), blocks=(own.plan.blocks[0] // 2,))
    )
    assert any("a model that is run in float32" in reason for reason in check.reasons)


def test_a_release_that_counts_as_before_2026_is_known_by_its_figure() -> None:
    windows = about("gemma3-270m", context=8192)
    before = windows.plan.blocks[0] // 6 * 16
    (reason,) = checked(windows, as_reported(windows, tokens=Tokens(before))).reasons
    assert "formula before 2026" in reason
    (reason,) = checked(windows, as_reported(windows, tokens=None, concurrency=None)).reasons
    assert f"which gives {before:,}" in reason


def test_several_engines_are_told_apart() -> None:
    check = checked(about(), as_reported(about(), engines=2))
    assert check.reasons == ("2 engines share the address: what is reported is of one of them",)


@pytest.mark.parametrize(
    ("rest", "doubt"),
    [
        ({"tokens_max": Tokens(32_768)}, "it serves another model"),
        ({"dtype": "turboquant_3bit_nc"}, "a format that Kvist does not know"),
        ({"kv_bytes": Bytes(GIB), "blocks": (17,)}, "or was started in a way that it does not tell"),
        ({"tokens": Tokens(7)}, "its release has other rules"),
        ({"block_tokens": 7}, "that cannot be planned"),
        ({"kv_bytes": Bytes(2**49), "blocks": (9,)}, "that cannot be planned"),
    ],
    ids=lambda each: str(each)[:24],
)
def test_what_nothing_explains_is_a_doubt(rest: dict[str, object], doubt: str) -> None:
    assert any(doubt in each for each in checked(about(), as_reported(about(), **rest)).doubts)


def test_rules_of_another_engine_are_not_compared() -> None:
    with pytest.raises(ConfigError, match="give --engine kvist"):
        checked(about(), as_kvist_reports(by_kvist()))
    with pytest.raises(ConfigError, match="give --engine vllm"):
        checked(by_kvist(), as_reported(about()))


def test_kvist_as_planned_has_no_reasons() -> None:
    check = checked(by_kvist(), as_kvist_reports(by_kvist()))
    assert (check.reasons, check.doubts) == ((), ())
    assert {row.difference for row in check.rows} == {0, None}


@pytest.mark.parametrize(
    ("rest", "sentence"),
    [
        ({"kv_memory": Bytes(GIB)}, "KV memory: the plan leaves"),
        ({"step_tokens": 256}, "tokens of a step: planned 1,024, the server has 256"),
        ({"block_tokens": 32}, "blocks: planned of 16 tokens, the server has them of 32"),
        ({"kv_dtype": "float32"}, "KV dtype: planned bfloat16, the server keeps it in float32"),
    ],
    ids=lambda each: str(each)[:20],
)
def test_what_kvist_has_otherwise_is_named_and_explains_all(rest: dict[str, object], sentence: str) -> None:
    own = by_kvist(**rest)
    said = as_kvist_reports(own, block_tokens=own.deployment.block_tokens_asked)
    check = checked(by_kvist(), said)
    assert any(reason.startswith(sentence) for reason in check.reasons)
    assert check.doubts == ()


def test_weights_and_workspace_of_kvist_are_measured() -> None:
    answer = by_kvist()
    weights, workspace = answer.plan.weights_bytes, answer.plan.workspace_bytes_per_rank
    said = as_kvist_reports(answer, weights_bytes=Bytes(weights * 101 // 100), workspace_bytes=Bytes(workspace // 2))
    check = checked(answer, said)
    assert [reason.split(":")[0] for reason in check.reasons] == ["weights", "workspace"]
    assert check.doubts == ()
    (doubt,) = checked(answer, as_kvist_reports(answer, weights_bytes=Bytes(weights * 2))).doubts
    assert "another model" in doubt
    (doubt,) = checked(answer, as_kvist_reports(answer, bytes_per_token=Bytes(1))).doubts
    assert "another model" in doubt


def test_another_number_of_groups_is_a_doubt() -> None:
    assert checked(by_kvist(), as_kvist_reports(by_kvist(), blocks=(5,))).doubts
