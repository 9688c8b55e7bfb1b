"""Halving finds the edge wherever it is."""

import pytest

from kvist.planner.search import largest


@pytest.mark.parametrize("edge", range(3, 12))
def test_the_edge_is_found(edge: int) -> None:
    asked: list[int] = []

    def fits(number: int) -> bool:
        asked.append(number)
        return number <= edge

    assert largest(3, 11, fits) == edge
    assert len(asked) <= 4


def test_a_single_number_is_not_asked_about() -> None:
    asked: list[int] = []
    assert largest(5, 5, lambda number: bool(asked.append(number))) == 5
    assert asked == []
