"""How the plain port groups what it moves; that it moves the right bytes is the business of its contract."""

import errno
from collections.abc import Callable

import pytest

from kvist.tiers.disk_files import Piece, _move

CONTENT = bytes(range(100))


class Medium:
    """A file of 100 bytes as a system call sees it; notes how much is asked for at once."""

    def __init__(self, *, most: int = 1000, fails_at: int = 1000) -> None:
        self.asked: list[int] = []
        self.most, self.fails_at = most, fails_at

    def __call__(self, fd: int, views: list[memoryview], offset: int) -> int:
        wanted = sum(view.nbytes for view in views)
        self.asked.append(wanted)
        if offset <= self.fails_at < offset + wanted:
            raise OSError(errno.EIO, "as told")
        moved = 0
        for view in views:
            part = CONTENT[offset + moved : offset + min(moved + view.nbytes, self.most)]
            view[: len(part)] = part
            moved += len(part)
        return moved


SPANS = [(20, 10), (0, 10), (10, 10), (40, 5)]


@pytest.mark.parametrize(
    ("make", "asked", "results"),
    [
        (Medium, [30, 5], [10, 10, 10, 5]),
        (lambda: Medium(most=4), [30, 10, 6, 2, 10, 6, 2, 10, 6, 2, 5, 1], [10, 10, 10, 5]),
        (lambda: Medium(fails_at=25), [30, 10, 10, 10, 5], [-errno.EIO, 10, 10, 5]),
    ],
    ids=["neighbours at once", "a few bytes at a time", "one of them fails"],
)
def test_neighbours_go_together_and_alone_when_something_is_wrong(
    make: Callable[[], Medium], asked: list[int], results: list[int]
) -> None:
    medium, views = make(), [memoryview(bytearray(length)) for _, length in SPANS]
    pieces = [Piece(3, offset, view) for (offset, _), view in zip(SPANS, views, strict=True)]
    assert _move(medium, pieces) == results
    assert medium.asked == asked
    for (offset, length), view, result in zip(SPANS, views, results, strict=True):
        assert result < 0 or bytes(view) == CONTENT[offset : offset + length]


def test_neighbours_are_of_one_file_and_of_a_bounded_number() -> None:
    medium = Medium()
    _move(medium, [Piece(fd, 10 * fd, memoryview(bytearray(10))) for fd in range(5)])
    assert medium.asked == [10] * 5
    medium = Medium()
    _move(medium, [Piece(3, offset, memoryview(bytearray(1))) for offset in range(1000, 1300)])
    assert medium.asked[0] == 256
