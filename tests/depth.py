"""How much random tests try: so many examples as they say, and on until everything that can happen has happened."""

from collections.abc import Callable

from hypothesis import seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

FACTORS = {"ci": 1, "deep": 20}
ROUNDS_MAX = 6


def examples(count: int) -> int:
    """Examples for a test that needs `count` of them to be worth running; many more in the profile "deep"."""
    return count * FACTORS.get(settings.get_current_profile_name(), 1)


def run_state_machine_until(
    is_enough: Callable[[], bool], machine: type[RuleBasedStateMachine], *, max_examples: int, steps: int
) -> None:
    """Runs a machine, with another seed each time, until enough was tried.

    Which examples a seed gives depends on what else the process has imported, since Hypothesis looks for constants
    there: so rare events may be missing from any one run, while a machine that no longer reaches them never does.

    Raises:
        AssertionError: the machine failed, or after `ROUNDS_MAX` runs enough was not tried.
    """
    for number in range(ROUNDS_MAX):
        seeded = seed(number)(machine)
        run_state_machine_as_test(
            seeded, settings=settings(max_examples=examples(max_examples), stateful_step_count=steps)
        )
        if is_enough():
            return
    raise AssertionError(f"hardly tried by {machine.__name__}, in {ROUNDS_MAX} runs")
