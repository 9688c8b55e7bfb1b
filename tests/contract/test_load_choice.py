"""What every LoadChoice promises, whichever it is: choose (cheaper) and choose_longest (always)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.cost.choice import Exploration, Prospect
from kvist.fabric.policies import LOAD_CHOICES, LoadChoice

SECONDS = st.floats(0, 1e4)
LOADS = st.builds(Prospect, tokens=st.integers(16, 10**6), load_s=SECONDS, prefill_s=SECONDS, hopeful_load_s=SECONDS)
RECOMPUTE = st.builds(Prospect, tokens=st.just(0), load_s=st.just(0.0), prefill_s=SECONDS)


@pytest.mark.parametrize("choice", LOAD_CHOICES.values(), ids=LOAD_CHOICES)
@given(recompute=RECOMPUTE, loads=st.lists(LOADS, max_size=8), now_s=SECONDS)
def test_one_of_the_prospects_is_taken_and_waited_for_only_if_it_loads(
    choice: LoadChoice, recompute: Prospect, loads: list[Prospect], now_s: float
) -> None:
    prospects = [recompute, *loads]
    found = choice(prospects, Exploration(), now_s=now_s)
    assert 0 <= found.index < len(prospects)
    assert (found.patience_s > 0) == (prospects[found.index].load_s > 0)
    assert found.reason
    assert found.exploration.saved_s >= 0


@pytest.mark.parametrize("choice", LOAD_CHOICES.values(), ids=LOAD_CHOICES)
def test_the_same_question_has_the_same_answer(choice: LoadChoice) -> None:
    prospects = [Prospect(tokens=0, load_s=0, prefill_s=1), Prospect(tokens=16, load_s=0.5, prefill_s=0)]
    assert choice(prospects, Exploration(), now_s=1) == choice(prospects, Exploration(), now_s=1)
