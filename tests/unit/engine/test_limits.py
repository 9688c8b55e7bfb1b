import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.shape import request_of
from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.engine.limits import check_limits, reason_to_refuse
from kvist.engine.messages import EngineLimits, Refused

LIMITS = EngineLimits(
    model_tokens_max=Tokens(100),
    prompt_tokens_max=Tokens(80),
    output_tokens_max=Tokens(50),
    longest_request_tokens=Tokens(90),
    sequences_max=4,
    waiting_max=3,
    vocab_size=10,
)


def refusal(prompt: int | tuple[int, ...], output: int, *, live: int = 0, known: bool = False) -> Refused | None:
    tokens = (1,) * prompt if isinstance(prompt, int) else prompt
    return reason_to_refuse(request_of("r", tokens, output=output), LIMITS, live=live, known=known)


@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (80, 11), (41, 50), (1, 50), ((0, 9), 1)])
def test_what_is_just_within_the_bounds_is_accepted(prompt: int | tuple[int, ...], output: int) -> None:
    assert refusal(prompt, output) is None
    assert refusal(prompt, output, live=6) is None


@pytest.mark.parametrize(
    ("prompt", "output", "param", "message"),
    [
        (0, 1, "prompt", "the prompt is empty"),
        (0, 0, "prompt", "the prompt is empty"),
        (1, 0, "max_tokens", "an output bound of 0 tokens"),
        (1, -5, "max_tokens", "an output bound of -5 tokens"),
        ((0, 10, 1), 1, "prompt", r"token id 10 is not in \[0, 10\)"),
        ((0, -1, 1), 1, "prompt", r"token id -1 is not in \[0, 10\)"),
        ((2**70,), 1, "prompt", f"token id {2**70} is not in"),
        (81, 1, "prompt", "the prompt has 81 tokens, the limit is 80"),
        (1, 51, "max_tokens", "up to 51 output tokens were asked for, the limit is 50"),
        (1, 10**30, "max_tokens", f"up to {10**30} output tokens"),
        (80, 21, "max_tokens", "80 prompt tokens and up to 21 output tokens exceed the limit of 100"),
        (80, 12, "max_tokens", "can never fit: the KV memory holds one sequence of 90 tokens; .* --kv-memory"),
        (42, 50, "max_tokens", "can never fit"),
    ],
)
def test_what_can_never_run_is_refused_with_value_and_field(
    prompt: int | tuple[int, ...], output: int, param: str, message: str
) -> None:
    refused = refusal(prompt, output)
    assert refused is not None
    assert (refused.request_id, refused.kind, refused.param) == ("r", "invalid", param)
    assert re.search(message, refused.message), refused.message


def test_a_full_queue_is_a_reason_to_come_back_later() -> None:
    refused = refusal(1, 1, live=7)
    assert refused is not None
    assert (refused.kind, refused.param) == ("busy", None)
    assert "7 requests run or wait" in refused.message


def test_what_can_never_run_is_not_asked_to_come_back() -> None:
    refused = refusal(0, 1, live=7)
    assert refused is not None
    assert refused.kind == "invalid"


def test_an_id_that_is_in_use_is_refused() -> None:
    refused = refusal(1, 1, known=True)
    assert refused is not None
    assert (refused.kind, "'r' is running already" in refused.message) == ("invalid", True)


@given(st.integers(0, 120), st.integers(-1, 120))
def test_a_request_is_accepted_exactly_when_every_bound_holds(prompt: int, output: int) -> None:
    fits = 1 <= prompt <= 80 and 1 <= output <= 50 and prompt + output <= 100 and prompt + output - 1 <= 90
    assert (refusal(prompt, output) is None) == fits


def test_bounds_that_agree_pass() -> None:
    check_limits(LIMITS, step_tokens=4)


@pytest.mark.parametrize(
    ("limits", "step_tokens", "message"),
    [
        (replace(LIMITS, prompt_tokens_max=Tokens(100)), 8, "prompts of 100 tokens .* sequences of 100; lower"),
        (replace(LIMITS, output_tokens_max=Tokens(101)), 8, "outputs of 101 tokens .* sequences of 100; lower"),
        (LIMITS, 3, "a step of 3 tokens cannot decode 4 sequences; raise --step-tokens"),
    ],
)
def test_bounds_that_contradict_each_other_are_a_configuration_error(
    limits: EngineLimits, step_tokens: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_limits(limits, step_tokens=step_tokens)
