import re
from itertools import product

import pytest

from kvist.blocks import lifecycle
from kvist.blocks.lifecycle import TRANSITIONS, Move, State, next_state


def drawn() -> set[tuple[State, Move, State]]:
    """The arrows of the drawing in the module's docstring."""
    text = lifecycle.__doc__ or ""
    right = re.findall(r"([A-Z]+) ──([a-z_, ]+)──▶ (?=([A-Z]+))", text)
    left = re.findall(r"([A-Z]+) ◀──([a-z_, ]+)── ([A-Z]+)", text)
    arrows = [*right, *((begin, moves, end) for end, moves, begin in left)]
    return {
        (State[begin], Move[move.upper()], State[end]) for begin, moves, end in arrows for move in moves.split(", ")
    }


def test_the_drawing_shows_the_table() -> None:
    assert drawn() == {(before, move, after) for (before, move), after in TRANSITIONS.items()}


@pytest.mark.parametrize(("state", "move"), list(product(State, Move)))
def test_each_move_of_each_state_is_in_the_table_or_refused(state: State, move: Move) -> None:
    if (state, move) in TRANSITIONS:
        assert next_state(state, move) is TRANSITIONS[state, move]
    else:
        with pytest.raises(AssertionError, match=f"{state.value} cannot {move.value}"):
            next_state(state, move)


@pytest.mark.parametrize("move", Move)
def test_each_move_is_of_use_somewhere(move: Move) -> None:
    assert any(used is move for _, used in TRANSITIONS)


def reached_from(start: State) -> set[State]:
    reached, todo = {start}, [start]
    while todo:
        state = todo.pop()
        new = {after for (before, _), after in TRANSITIONS.items() if before is state} - reached
        reached |= new
        todo += new
    return reached


@pytest.mark.parametrize("state", State)
def test_each_state_is_reached_from_free_and_leads_back(state: State) -> None:
    assert state in reached_from(State.FREE)
    assert State.FREE in reached_from(state)


def test_what_is_sealed_is_never_written_again_before_it_was_free() -> None:
    assert [before for (before, _), after in TRANSITIONS.items() if after is State.FILLING] == [State.FREE]


def test_what_is_held_is_never_evicted() -> None:
    assert {before for before, move in TRANSITIONS if move is Move.EVICT} == {State.CACHED}
