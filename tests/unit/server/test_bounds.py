from dataclasses import replace

import pytest

from fakes.engine import LIMITS
from kvist.base.ids import TokenId
from kvist.base.units import Tokens
from kvist.server.bounds import check_choices, check_prompt, output_bound, sequence_tokens_max
from kvist.server.errors import ApiError


def prompt_of(length: int) -> list[TokenId]:
    return [TokenId(1)] * length


def code_of(call, *args: object, **rest: object) -> tuple[str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        call(*args, **rest)
    assert caught.value.family.status == 400
    return caught.value.param, caught.value.code


def test_the_longest_sequence_is_bounded_by_model_and_pool() -> None:
    assert sequence_tokens_max(LIMITS) == 800
    assert sequence_tokens_max(replace(LIMITS, longest_request_tokens=Tokens(5000))) == 1000


@pytest.mark.parametrize("length", [1, 799])
def test_a_prompt_that_fits_is_fine(length: int) -> None:
    check_prompt(prompt_of(length), LIMITS, param="prompt")
    assert output_bound(length, None, limits=LIMITS, default=None) >= 1


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    assert code_of(check_prompt, [], LIMITS, param="prompt") == ("prompt", "empty_prompt")
    assert code_of(check_prompt, prompt_of(800), LIMITS, param="p") == ("p", "context_length_exceeded")
    short = replace(LIMITS, prompt_tokens_max=Tokens(10))
    assert code_of(check_prompt, prompt_of(11), short, param="p") == ("p", "context_length_exceeded")


@pytest.mark.parametrize("token", [-1, 260, 2**63, 10**4000])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    assert code_of(check_prompt, [TokenId(0), TokenId(token)], LIMITS, param="prompt") == ("prompt", "invalid_value")


def test_a_bound_that_was_not_asked_for_takes_what_fits() -> None:
    assert output_bound(100, None, limits=LIMITS, default=None) == 500
    assert output_bound(700, None, limits=LIMITS, default=None) == 100
    assert output_bound(100, None, limits=LIMITS, default=16) == 16
    assert output_bound(790, None, limits=LIMITS, default=16) == 10


def test_a_bound_that_was_asked_for_is_kept_or_refused() -> None:
    assert output_bound(100, 500, limits=LIMITS, default=16) == 500
    assert output_bound(700, 100, limits=LIMITS, default=16) == 100
    assert code_of(output_bound, 1, 501, limits=LIMITS, default=16) == ("max_tokens", "invalid_value")
    asked = {"limits": LIMITS, "default": None, "param": "max_completion_tokens"}
    assert code_of(output_bound, 700, 101, **asked) == ("max_completion_tokens", "context_length_exceeded")
    assert code_of(output_bound, 1, 10**4000, **asked) == ("max_completion_tokens", "invalid_value")


def test_the_numbers_are_named() -> None:
    with pytest.raises(ApiError, match=r"800 tokens, and 810 were asked for: 700 in the prompt and 110 for the output"):
        output_bound(700, 110, limits=LIMITS, default=None)


def test_no_more_sequences_than_can_be_let_in() -> None:
    check_choices(4, 32, 128, LIMITS)
    assert code_of(check_choices, 4, 33, 128, LIMITS) == ("n", "invalid_value")
    narrow = replace(LIMITS, sequences_max=2, waiting_max=3)
    check_choices(1, 5, 128, narrow)
    assert code_of(check_choices, 2, 3, 128, narrow) == ("n", "invalid_value")
