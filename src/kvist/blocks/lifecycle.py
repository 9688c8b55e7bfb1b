"""The life of a block as a table: which states there are and what leads from one to the next.

    FREE ──allocate──▶ FILLING ──seal──▶ HELD ──unhold_last──▶ CACHED ──evict──▶ FREE
                       FILLING ──discard──▶ FREE
                                         HELD ◀──hold── CACHED
                                         HELD ──hold, unhold──▶ HELD
                                         HELD ──discard──▶ FREE

A FILLING block belongs to the one sequence that writes it. A HELD block is sealed: its bytes never change
again, and any number of sequences read it; `unhold` ends one hold of several. A CACHED block is sealed and nobody
reads it, so it may be evicted. A sealed block that nobody will look for (a passed window) is discarded instead of
cached.

Law: every change of state in a pool goes through `next_state`.
"""

from enum import Enum


class State(Enum):
    """Where a block is in its life."""

    __hash__ = object.__hash__  # members are single objects; Enum's own goes through their names and takes longer

    FREE = "free"
    FILLING = "filling"
    HELD = "held"
    CACHED = "cached"


class Move(Enum):
    """What can happen to a block."""

    __hash__ = object.__hash__

    ALLOCATE = "allocate"
    SEAL = "seal"
    HOLD = "hold"
    UNHOLD = "unhold"
    UNHOLD_LAST = "unhold_last"
    DISCARD = "discard"
    EVICT = "evict"


TRANSITIONS: dict[tuple[State, Move], State] = {
    (State.FREE, Move.ALLOCATE): State.FILLING,
    (State.FILLING, Move.SEAL): State.HELD,
    (State.FILLING, Move.DISCARD): State.FREE,
    (State.HELD, Move.HOLD): State.HELD,
    (State.HELD, Move.UNHOLD): State.HELD,
    (State.HELD, Move.UNHOLD_LAST): State.CACHED,
    (State.HELD, Move.DISCARD): State.FREE,
    (State.CACHED, Move.HOLD): State.HELD,
    (State.CACHED, Move.EVICT): State.FREE,
}


def next_state(state: State, move: Move) -> State:
    """The state after a move.

    Raises:
        AssertionError: the table has no such move; a mistake of ours, never of a user.
    """
    after = TRANSITIONS.get((state, move))
    if after is None:
        raise AssertionError(f"a block that is {state.value} cannot {move.value}")
    return after
