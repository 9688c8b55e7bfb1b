"""Outcomes are values, and whether a tier lends can be asked."""

from dataclasses import FrozenInstanceError

import pytest

from fakes.tiers import BLUE, DictTier, key_of, memory_trial, record_of
from kvist.blocks.form import read_header
from kvist.tiers.ports import Absent, Address, Damaged, Found, Lender, NotStored, Place, Stored, TierStatistics, VerbUse


def test_outcomes_of_one_kind_are_equal_and_of_two_kinds_are_not() -> None:
    kinds = [Found(), Absent(), Damaged(reason="x"), Stored(), NotStored(reason="x")]
    again = [Found(), Absent(), Damaged(reason="x"), Stored(), NotStored(reason="x")]
    assert [[one == other for other in again] for one in kinds] == [
        [row == col for col in range(5)] for row in range(5)
    ]
    assert Damaged(reason="x") != Damaged(reason="y")


def test_a_found_record_is_found_with_or_without_its_header() -> None:
    address = Address(key=key_of(0), tenant=BLUE)
    header = read_header(record_of(address, 600))
    assert Found(header=header) == Found()
    assert Found(header=header).header == header
    assert Found().header is None


def test_an_address_is_a_key_of_dictionaries_by_all_it_says() -> None:
    places = [None, Place(offset=0, length=64), Place(offset=64, length=64), Place(offset=0, length=128)]
    addresses = {Address(key=key_of(number), tenant=BLUE, place=place) for number in range(2) for place in places}
    assert len(addresses) == 8
    assert Address(key=key_of(1), tenant=BLUE, place=Place(offset=64, length=64)) in addresses


def test_who_lends_says_so() -> None:
    assert not isinstance(DictTier(), Lender)
    with memory_trial() as trial:
        assert isinstance(trial.tier, Lender)


def test_numbers_begin_at_nothing_and_are_frozen() -> None:
    books = TierStatistics()
    assert (books.reads, books.writes, books.failures, books.verbs) == (0, 0, 0, ())
    assert books.records is books.bytes_used is books.bytes_max is None
    with pytest.raises(FrozenInstanceError):
        books.reads = 1
    with pytest.raises(FrozenInstanceError):
        VerbUse(verb="read", calls=1, seconds=1.0).calls = 2
