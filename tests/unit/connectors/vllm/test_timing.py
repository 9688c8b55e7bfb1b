import pytest

from kvist.connectors.vllm.timing import Computed, StepTimes


def test_a_step_that_computes_one_request_tells_how_long_that_takes() -> None:
    times = StepTimes(overlap=False)
    times.planned((16, 80), 1.0)
    assert times.reported(1.5, 0.125) == Computed(start=16, end=80, seconds=0.375)
    assert times.reported(2.0, 0.0) is None, "it is told once"


@pytest.mark.parametrize("tokens", [None, (80, 81)])
def test_other_steps_and_those_of_one_token_tell_nothing(tokens: tuple[int, int] | None) -> None:
    times = StepTimes(overlap=False)
    times.planned((0, 16), 0.0)
    times.planned(tokens, 1.0)
    assert times.reported(1.5, 0.0) is None


def test_where_steps_overlap_nothing_is_learned() -> None:
    times = StepTimes(overlap=True)
    times.planned((0, 16), 0.0)
    assert times.reported(1.0, 0.0) is None


def test_copying_for_longer_than_the_step_took_leaves_no_time() -> None:
    times = StepTimes(overlap=False)
    times.planned((0, 16), 0.0)
    assert times.reported(1.0, 1.5) == Computed(start=0, end=16, seconds=0.0)
