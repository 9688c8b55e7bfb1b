"""vLLM's own scheduler before Kvist's connector and two workers; only the model is made up, and no engine is started.

What is attended is looked at, position by position (`under_vllm.made_up_model`), and nothing may be left in the end.
Here stands what is to come of each trouble. `tests/sim/test_vllm_scheduler.py` has more of them, on virtual time and
before a scheduler that is made up as well.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from under_vllm.lives_on_scheduler import SchedulerLife
from under_vllm.scheduler_cases import Case

STEPS = 1500
BOTH = (None, 40)

Lived = Callable[[int, Case], SchedulerLife]

CASES = {
    "full": Case(),
    "full, overlap": Case(overlap=True, blocks=40),
    "windows": Case(windows=BOTH),
    "windows, overlap": Case(windows=BOTH, overlap=True),
    "windows alone": Case(windows=(40, 100)),
    "priority, overlap, disk": Case(priority=True, overlap=True, tiers=("dram=256KiB", "disk=FOLDER/disk:8MiB")),
    "guesses, windows, late": Case(windows=BOTH, guesses=3, late=True),
    "input in parts, overlap": Case(streams=True, overlap=True),
    "no caching, windows, overlap": Case(caching=False, windows=BOTH, overlap=True),
}


@pytest.fixture
def lived(model: Callable[[str], Path], tmp_path: Path) -> Iterator[Lived]:
    """Lives that have come to their end."""
    lives: list[SchedulerLife] = []

    def lived(seed: int, case: Case) -> SchedulerLife:
        lives.append(SchedulerLife(seed, case, model=model("smollm2"), folder=tmp_path))
        lives[-1].run(STEPS)
        lives[-1].end()
        return lives[-1]

    yield lived
    for life in lives:
        life.close()


@pytest.mark.parametrize("name", CASES)
def test_what_is_loaded_is_what_was_computed(name: str, lived: Lived) -> None:
    life = lived(1, CASES[name])
    found = life.statistics()
    assert life.loaded_tokens >= 2000, found
    assert found.loads["complete"] >= 20, found
    assert found.loads.keys() <= {"complete", "aborted", "late"}, found
    assert found.stores.keys() <= {"done", "dropped"}, found
    assert life.model.attended >= 100_000
    assert life.happened["finished"] >= 50, life.happened
    assert life.happened["preempted"] >= 3, life.happened
    assert life.happened["aborted"] >= 3, life.happened


@pytest.mark.parametrize("case", [Case(fails=30), Case(fails=30, windows=BOTH, overlap=True)], ids=["full", "windows"])
def test_copies_that_fail_cost_hits_and_no_request(case: Case, lived: Lived) -> None:
    life = lived(2, case)
    found = life.statistics()
    assert life.workers.failed_loads >= 3, found
    assert found.stores["failed"] >= 10, found
    assert life.loaded_tokens >= 1000, found
    assert life.happened["finished"] >= 50, life.happened


@pytest.mark.parametrize(
    "case",
    [Case(resets=60), Case(resets=60, overlap=True), Case(resets=60, windows=BOTH, overlap=True)],
    ids=["full", "full, overlap", "windows, overlap"],
)
def test_after_a_reset_nothing_of_before_is_found_even_where_vllm_has_kept_it(case: Case, lived: Lived) -> None:
    life = lived(4, case)
    assert life.happened["reset"] >= 3, life.happened
    assert life.happened["refused"] >= 3, life.happened
    assert life.loaded_tokens >= 300, life.statistics()
    assert life.happened["finished"] >= 50, life.happened
