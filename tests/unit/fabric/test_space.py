"""Places are disjoint, extents change their class when they are empty, and a single class can use all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.fabric.space import Space
from kvist.tiers.ports import Place


def filled(space: Space, length: int) -> list[Place]:
    places = []
    while (place := space.take(length)) is not None:
        places.append(place)
    return places


@given(extents=st.integers(0, 9), rest=st.integers(0, 63), length=st.integers(1, 16).map(lambda each: 4 * each))
def test_a_single_class_fills_every_whole_extent(extents: int, rest: int, length: int) -> None:
    space = Space(bytes_max=extents * 64 + rest, extent_bytes=64, alignment=4)
    places = filled(space, length)
    space.audit(places)
    assert len(places) == extents * (64 // length)
    assert space.bytes_used == len(places) * length


@given(extents=st.integers(1, 9), rest=st.integers(0, 63), length=st.sampled_from([4, 8, 16, 32, 64]))
def test_places_that_fit_extents_leave_less_than_one_extent_unused(extents: int, rest: int, length: int) -> None:
    bytes_max = extents * 64 + rest
    space = Space(bytes_max=bytes_max, extent_bytes=64, alignment=4)
    filled(space, length)
    assert bytes_max - 64 < space.bytes_used <= bytes_max


@given(st.lists(st.sampled_from([4, 8, 12, 36, 64]) | st.integers(0, 30).map(lambda index: -1 - index), max_size=80))
def test_places_in_use_are_disjoint_whatever_is_taken_and_given(steps: list[int]) -> None:
    """A positive step takes a place of that length, a negative one gives a place back."""
    space, places = Space(bytes_max=300, extent_bytes=64, alignment=4), []
    for step in steps:
        if step > 0:
            room, place = space.has_room(step), space.take(step)
            assert room == (place is not None)
            places += [] if place is None else [place]
        elif places:
            space.give(places.pop(step % len(places)))
        space.audit(places)
        by_extent = [[place for place in places if space.extent_of(place.offset) == index] for index in range(4)]
        assert [space.class_of(index) for index in range(4)] == [each[0].length if each else 0 for each in by_extent]
        offsets = [sorted(place.offset for place in each) for each in by_extent]
        assert [list(space.places(index)) for index in range(4)] == offsets
    assert places or space.bytes_used == 0


def test_an_extent_belongs_to_any_class_once_it_is_empty() -> None:
    space = Space(bytes_max=128, extent_bytes=64, alignment=4)
    small = filled(space, 4)
    assert len(small) == 32
    assert space.take(64) is None
    for place in small[:15]:
        space.give(place)
    assert space.take(64) is None, "one of sixteen is still in use"
    space.give(small[15])
    assert space.take(64) == Place(offset=0, length=64)


def test_records_are_rounded_up_to_the_alignment() -> None:
    space = Space(bytes_max=8192, extent_bytes=4096, alignment=512)
    assert [space.length_of(size) for size in (1, 512, 513, 4096)] == [512, 512, 1024, 4096]


def test_what_never_fits_is_told_with_the_figures() -> None:
    space = Space(bytes_max=100, extent_bytes=64, alignment=4)
    assert space.why_never(64) is None
    assert space.why_never(65) == "a record of 65 bytes is longer than an extent of 64"
    assert space.why_never(61) is None, "rounded up it still fits"
    assert space.why_never(0) == "a record of 0 bytes is empty"
    assert space.why_never(-1) == "a record of -1 bytes is empty"
    for bytes_max in (63, 0, -5):
        tiny = Space(bytes_max=bytes_max, extent_bytes=64, alignment=4)
        assert tiny.why_never(4) == "the budget has no room for one extent of 64 bytes"
        assert tiny.take(4) is None


def test_a_place_chosen_earlier_is_claimed_or_refused_with_a_reason() -> None:
    space = Space(bytes_max=200, extent_bytes=64, alignment=4)
    for offset in (80, 64, 112):
        assert space.claim(Place(offset=offset, length=16)) is None
    wrong = {
        (80, 16): "in use already",
        (72, 8): "overlaps others of 16 bytes",
        (88, 16): "not where places of its length begin",
        (40, 40): "not where places of its length begin",
        (48, 32): "not where places of its length begin",
        (192, 8): "outside 3 extents",
        (-16, 16): "outside 3 extents",
        (2**80, 16): "outside 3 extents",
        (0, 68): "no length that places here have",
        (0, 6): "no length that places here have",
        (0, 0): "no length that places here have",
        (0, -16): "no length that places here have",
    }
    for (offset, length), reason in wrong.items():
        assert reason in (space.claim(Place(offset=offset, length=length)) or "claimed"), (offset, length)
    space.audit([Place(offset=offset, length=16) for offset in (64, 80, 112)])
    taken = filled(space, 16)
    assert [place.offset for place in taken][:1] == [96], "the hole between what was claimed is filled first"
    space.audit([*taken, *(Place(offset=offset, length=16) for offset in (64, 80, 112))])


def test_a_place_is_given_back_once_and_as_what_it_is() -> None:
    space = Space(bytes_max=64, extent_bytes=64, alignment=4)
    first, second = space.take(16), space.take(16)
    assert first is not None
    assert second is not None
    with pytest.raises(AssertionError, match="not of the class"):
        space.give(Place(offset=0, length=8))
    with pytest.raises(AssertionError, match="never in use"):
        space.give(Place(offset=48, length=16))
    space.give(first)
    with pytest.raises(AssertionError, match="not in use"):
        space.give(first)
    space.audit([second])


def test_extents_keep_the_alignment_or_are_refused() -> None:
    for extent_bytes, alignment in ((0, 4), (64, 0), (66, 4), (-64, 4)):
        with pytest.raises(AssertionError):
            Space(bytes_max=640, extent_bytes=extent_bytes, alignment=alignment)


def test_the_audit_sees_what_owners_and_space_do_not_agree_on() -> None:
    space = Space(bytes_max=128, extent_bytes=64, alignment=4)
    place = space.take(16)
    assert place is not None
    for wrong in ([], [place, place], [Place(offset=16, length=16)], [Place(offset=0, length=12)]):
        with pytest.raises(AssertionError, match="owners say"):
            space.audit(wrong)
    space.bytes_used += 1
    with pytest.raises(AssertionError, match="bytes are counted"):
        space.audit([place])


class TestMissing:
    """A medium that others fill has no room for some extents."""

    NOW = 1000.0

    def proven(self, extents: int, missing: int) -> tuple[Space, list[Place]]:
        """Of so many extents with places of 16 bytes, all but the last ones are full and proven."""
        space = Space(bytes_max=extents * 64, extent_bytes=64, alignment=4)
        places = [space.take(16) for _ in range(4 * (extents - missing))]
        found = [place for place in places if place is not None]
        for place in found:
            space.prove(place)
        return space, found

    def test_what_exists_is_used_and_nothing_else(self) -> None:
        space, places = self.proven(5, missing=3)
        wrong = [space.take(16), space.take(16), space.take(8)]
        for place in wrong:
            assert place is not None
            space.shut(place, self.NOW)
            space.give(place)
            space.audit([*places, *(other for other in wrong[wrong.index(place) + 1 :] if other is not None)])
        assert not space.has_room(16)
        assert space.take(8) is None
        space.give(places.pop())
        again = space.take(16)
        assert again is not None
        assert space.extent_of(again.offset) == 1
        space.audit([*places, again])

    def test_one_is_tried_again_from_time_to_time_and_proves_them_all(self) -> None:
        space, places = self.proven(4, missing=3)
        wrong = space.take(16)
        assert wrong is not None
        space.shut(wrong, self.NOW)
        space.give(wrong)
        space.retry(self.NOW + 59)
        assert not space.has_room(16)
        for later in (self.NOW + 60, self.NOW - 1):  # a calendar that was set back must not shut them for ever
            space.shut(wrong, self.NOW)
            space.retry(later)
            trial = space.take(64)
            assert trial is not None
            assert not space.has_room(64), "more than one is tried at once"
            space.shut(trial, later)
            space.give(trial)
            space.audit(places)
        space.retry(self.NOW + 200)
        trial = space.take(64)
        assert trial is not None
        space.prove(trial)
        assert len(filled(space, 64)) == 2, "the medium has room again"

    def test_an_extent_with_something_in_it_is_not_missing(self) -> None:
        space, places = self.proven(2, missing=1)
        space.shut(places[0], self.NOW)
        assert space.has_room(16)
        space.give(places.pop())
        assert len(filled(space, 16)) == 5

    def test_a_write_that_ends_well_after_all_proves_its_extent(self) -> None:
        space = Space(bytes_max=128, extent_bytes=64, alignment=4)
        first, second = space.take(16), space.take(16)
        assert first is not None
        assert second is not None
        space.shut(first, self.NOW)
        space.give(first)
        assert not space.has_room(16)
        space.prove(second)
        space.audit([second])
        assert len(filled(space, 16)) == 7

    def test_what_was_found_at_the_start_is_proven(self) -> None:
        space = Space(bytes_max=128, extent_bytes=64, alignment=4)
        assert space.claim(Place(offset=16, length=16)) is None
        assert space.claim(Place(offset=64, length=64)) is None
        for offset in (0, 64):
            space.shut(Place(offset=offset, length=16), self.NOW)
        assert len(filled(space, 16)) == 3
