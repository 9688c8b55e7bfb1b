"""Where the memory goes: what was asked for or a part of what is free, never more than there is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.app.budget import Budget, check_asked, engine_limits, kv_bytes, kv_limits, memory_card
from kvist.app.config import ServeConfig, read_config
from kvist.base.errors import CapacityError, ConfigError
from kvist.base.units import Bytes, Tokens
from kvist.engine.limits import check_limits
from kvist.geometry.groups import KvGroup, ModelGeometry
from kvist.planner.budget import plan_kv

GIB = 2**30
GEOMETRY = ModelGeometry(
    architecture="LlamaForCausalLM",
    layers=2,
    query_heads=4,
    hidden_size=64,
    vocab_size=307,
    positions_max=Tokens(512),
    groups=(KvGroup(layers=(0, 1), kv_heads=2, head_dim_k=16, head_dim_v=16),),
    rope=(),
    dtype="bfloat16",
)


def given_by(**fields: object) -> ServeConfig:
    return read_config(fields)


# How long a sequence may be


def test_sequences_are_as_long_as_the_model_allows() -> None:
    limits = kv_limits(GEOMETRY, given_by())
    assert limits.model_tokens_max == 512
    assert (limits.dtype, limits.block_tokens, limits.step_tokens) == ("bfloat16", 16, 1024)
    assert (limits.sequences_max, limits.window_checkpoint_tokens) == (64, 4096)


def test_shorter_sequences_may_be_asked_for_and_longer_ones_not() -> None:
    assert kv_limits(GEOMETRY, given_by(model_tokens_max="512")).model_tokens_max == 512
    assert kv_limits(GEOMETRY, given_by(model_tokens_max="2")).model_tokens_max == 2
    with pytest.raises(ConfigError, match=r"--model-tokens-max 513 exceeds the model's 512 positions"):
        kv_limits(GEOMETRY, given_by(model_tokens_max="513"))


def test_a_model_without_room_for_an_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="take at least 2 positions, and the model has 1"):
        kv_limits(replace(GEOMETRY, positions_max=Tokens(1)), given_by())


def test_bounds_left_open_leave_room_for_one_token_of_the_other_kind() -> None:
    limits = engine_limits(GEOMETRY, given_by(), Tokens(300))
    assert (limits.model_tokens_max, limits.prompt_tokens_max, limits.output_tokens_max) == (512, 511, 511)
    assert (limits.longest_request_tokens, limits.sequences_max, limits.waiting_max) == (300, 64, 1024)
    assert limits.vocab_size == 307
    check_limits(limits, step_tokens=64)


def test_bounds_given_are_taken_as_they_are() -> None:
    config = given_by(model_tokens_max="100", prompt_tokens_max="80", output_tokens_max="30", sequences_max="3")
    limits = engine_limits(GEOMETRY, config, Tokens(100))
    assert (limits.model_tokens_max, limits.prompt_tokens_max, limits.output_tokens_max) == (100, 80, 30)
    assert limits.sequences_max == 3


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({"prompt_tokens_max": "512"}, ("--prompt-tokens-max", "--model-tokens-max")),
        ({"output_tokens_max": "9999"}, ("--output-tokens-max", "--model-tokens-max")),
        ({"model_tokens_max": "10", "prompt_tokens_max": "10"}, ("--prompt-tokens-max", "--model-tokens-max")),
        ({"step_tokens": "63"}, ("--step-tokens", "--sequences-max")),
    ],
)
def test_bounds_that_contradict_each_other_are_told_by_their_flags(fields: dict, flags: tuple[str, str]) -> None:
    config = given_by(**fields)
    with pytest.raises(ConfigError) as caught:
        check_limits(engine_limits(GEOMETRY, config, Tokens(512)), step_tokens=config.step_tokens)
    assert all(flag in str(caught.value) for flag in flags)


# How large the pool is


def test_on_a_cpu_the_pool_is_two_gib_unless_told_otherwise() -> None:
    assert kv_bytes(given_by(), Bytes(16 * GIB), Bytes(GIB)) == 2 * GIB
    assert kv_bytes(given_by(kv_memory="5GiB"), Bytes(16 * GIB), Bytes(GIB)) == 5 * GIB


def test_on_a_gpu_the_pool_is_most_of_what_is_left() -> None:
    assert kv_bytes(given_by(device="cuda"), Bytes(180 * 10**9), Bytes(100 * 10**9)) == 64 * 10**9
    assert kv_bytes(given_by(device="cuda", kv_memory="1GiB"), Bytes(16 * GIB), Bytes(0)) == GIB


def test_a_part_of_what_weights_and_workspace_leave() -> None:
    config = given_by(kv_memory_fraction="0.8")
    assert kv_bytes(config, Bytes(180 * 10**9), Bytes(100 * 10**9)) == 64 * 10**9
    assert kv_bytes(given_by(kv_memory_fraction="1"), Bytes(1000), Bytes(1)) == 999


@given(free=st.integers(0, 2**40), workspace=st.integers(0, 2**40), wanted=st.integers(1, 2**41))
def test_the_pool_and_a_step_never_take_more_than_is_free(free: int, workspace: int, wanted: int) -> None:
    for fields in (
        {"kv_memory": wanted},
        {"kv_memory_fraction": 0.9},
        {"kv_memory_fraction": 1},
        {"device": "cuda"},
        {},
    ):
        try:
            given_out = kv_bytes(given_by(**fields), Bytes(free), Bytes(workspace))
        except CapacityError:
            # Only what was asked for in bytes, or nothing at all, can be too much.
            assert fields.get("kv_memory", 2 * GIB) > free - workspace
        else:
            assert 0 < given_out <= free - workspace


def test_too_much_is_refused_with_the_figures_and_a_remedy() -> None:
    with pytest.raises(CapacityError) as caught:
        kv_bytes(given_by(kv_memory="64GiB"), Bytes(16 * GIB), Bytes(GIB))
    message = str(caught.value)
    for part in ("64.0 GiB of KV memory do not fit", "16.0 GiB are free", "1.0 GiB", "--kv-memory"):
        assert part in message


def test_the_default_is_refused_too_where_it_does_not_fit() -> None:
    with pytest.raises(CapacityError, match=r"2\.0 GiB of KV memory do not fit: 1\.0 GiB are free"):
        kv_bytes(given_by(), Bytes(GIB), Bytes(0))


# What was asked for and does not fit


@pytest.mark.parametrize(
    ("flag", "asked"), [("model_tokens_max", "321"), ("prompt_tokens_max", "320"), ("output_tokens_max", "320")]
)
def test_a_length_that_was_asked_for_and_does_not_fit_is_refused_at_start(flag: str, asked: str) -> None:
    """20 blocks hold 320 tokens; one token less of either kind fits."""
    block = 16 * GEOMETRY.bytes_per_token("bfloat16")
    config = given_by(**{flag: asked})
    plan = plan_kv(GEOMETRY, 20 * block, kv_limits(GEOMETRY, config))
    named = "--" + flag.replace("_", "-")
    with pytest.raises(CapacityError, match=rf"{named} asks for sequences of 321 tokens.*one of 320.*--kv-memory"):
        check_asked(config, plan)
    check_asked(given_by(**{flag: str(int(asked) - 1)}), plan)


def test_a_length_that_was_left_open_becomes_what_fits() -> None:
    plan = plan_kv(GEOMETRY, 20 * 16 * GEOMETRY.bytes_per_token("bfloat16"), kv_limits(GEOMETRY, given_by()))
    check_asked(given_by(), plan)
    assert plan.longest_request_tokens == 320


def test_the_server_is_told_what_was_decided() -> None:
    config = given_by(sequences_max="7", step_tokens="512", dtype="float32", window_checkpoint_tokens="1024")
    plan = plan_kv(GEOMETRY, GIB, kv_limits(GEOMETRY, config))
    budget = Budget(
        weights=Bytes(11),
        workspace=Bytes(12),
        kv=plan.bytes_used,
        plan=plan,
        limits=engine_limits(GEOMETRY, config, plan.longest_request_tokens),
        kv_bytes_per_token=GEOMETRY.bytes_per_token(config.dtype),
        block_tokens=config.block_tokens,
    )
    card = memory_card(budget, config)
    assert (card.weights_bytes, card.workspace_bytes, card.dtype) == (11, 12, "float32")
    assert (card.block_tokens, card.step_tokens, card.sequences_max) == (16, 512, 7)
    assert (card.model_tokens_max, card.window_checkpoint_tokens) == (GEOMETRY.positions_max, 1024)
