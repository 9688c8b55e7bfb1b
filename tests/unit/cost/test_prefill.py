import math

import pytest

from kvist.base.units import Tokens
from kvist.cost.prefill import PrefillModel, Work, prefill_model

WORK = Work(parameters=10**9, attention_width=10**5)


def model() -> PrefillModel:
    return prefill_model(WORK, step_tokens=Tokens(512))


def test_the_prior_follows_from_the_operations() -> None:
    fast = prefill_model(Work(parameters=10**9, attention_width=10**5, operations_per_s=1e12), step_tokens=Tokens(512))
    assert model().predict_s(0, 512) == pytest.approx(0.02 * 512 + 4e-6 * 512**2 / 2 + 1e-3)
    assert fast.predict_s(0, 512) == pytest.approx(0.002 * 512 + 4e-7 * 512**2 / 2 + 1e-3)


def test_tokens_that_look_back_further_take_longer() -> None:
    assert model().predict_s(4096, 4608) > model().predict_s(0, 512)


def test_computing_nothing_takes_no_time() -> None:
    assert model().predict_s(7, 7) == model().predict_s(9, 7) == 0.0


def test_a_long_prefill_takes_as_long_as_its_steps() -> None:
    steps = sum(model().predict_s(start, start + 512) for start in range(0, 4096, 512))
    assert model().predict_s(0, 4096) == pytest.approx(steps)


def test_what_is_learned_replaces_the_prior() -> None:
    learned = model()
    for _ in range(60):
        for start, end in ((0, 512), (2048, 2560), (8192, 8704), (8704, 8720), (100, 101)):
            learned = learned.learned(start, end, 3e-5 * (end - start) + 2e-9 * (end**2 - start**2) / 2 + 5e-3)
    assert learned.predict_s(0, 8192) == pytest.approx(3e-5 * 8192 + 1e-9 * 8192**2 + 16 * 5e-3, rel=0.05)
    assert learned.predict_s(8000, 8192) == pytest.approx(3e-5 * 192 + 1e-9 * (8192**2 - 8000**2) + 5e-3, rel=0.05)


@pytest.mark.parametrize(
    ("start", "end", "seconds"), [(5, 5, 1.0), (6, 5, 1.0), (-1, 5, 1.0), (0, 5, math.nan), (0, 5, -1.0)]
)
def test_what_cannot_be_is_not_learned(start: int, end: int, seconds: float) -> None:
    assert model().learned(start, end, seconds) == model()


def test_even_a_model_without_attention_or_parameters_has_a_prior() -> None:
    assert prefill_model(Work(parameters=0, attention_width=0), step_tokens=Tokens(1)).predict_s(0, 1) > 0


def test_steps_have_tokens() -> None:
    with pytest.raises(AssertionError, match="steps of 0 tokens"):
        prefill_model(WORK, step_tokens=Tokens(0))
