"""Whatever is wrong with a record, it is seen at the tier's boundary and never handed on."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.tiers import BLUE, NOW_UNIX_S, RED, DictTier, form_of, key_of, memory_trial, read_of, record_of, write_of
from kvist.blocks.form import HEADER_BYTES, Part, read_header, stamp_record
from kvist.tiers.ports import Absent, Address, Damaged, Found, Lender, Read, Write
from kvist.tiers.verified import Verified, VerifiedLender, examine, examine_lent, verified

SIZE = 600
ADDRESS = Address(key=key_of(0), tenant=BLUE)


@pytest.fixture
def inner() -> DictTier:
    return DictTier()


@pytest.fixture
def tier(inner: DictTier) -> Iterator[Verified]:
    yield verified(inner)
    inner.close()


def put(inner: DictTier, record: memoryview | bytes, address: Address = ADDRESS) -> None:
    """Puts bytes into the tier behind the wrapper's back."""
    inner.write([Write(address=address, record=memoryview(record), created_unix_s=NOW_UNIX_S)])


def reason(outcome: object) -> str:
    """Why a read was damaged, which it must be."""
    assert isinstance(outcome, Damaged), outcome
    return outcome.reason


def test_a_sound_record_comes_with_its_header(tier: Verified) -> None:
    tier.write([write_of(ADDRESS)])
    (found,) = tier.read([read_of(ADDRESS)])
    assert isinstance(found, Found)
    assert found.header == read_header(record_of(ADDRESS, SIZE))


def test_any_single_bit_that_flips_is_seen(inner: DictTier, tier: Verified) -> None:
    record = record_of(ADDRESS, SIZE)
    for bit in range(SIZE * 8):
        record[bit // 8] ^= 1 << bit % 8
        assert isinstance(examine(record, ADDRESS, form_of(SIZE)), Damaged), f"bit {bit}"
        assert isinstance(examine(record, ADDRESS, None), Damaged), f"bit {bit}"
        record[bit // 8] ^= 1 << bit % 8
    assert examine(record, ADDRESS, form_of(SIZE)) == Found()
    for bit in (0, 100 * 8, HEADER_BYTES * 8 - 1, HEADER_BYTES * 8, SIZE * 8 - 1):
        record[bit // 8] ^= 1 << bit % 8
        put(inner, record)
        assert reason(tier.read([read_of(ADDRESS)])[0])
        record[bit // 8] ^= 1 << bit % 8


@given(start=st.integers(0, SIZE - 1), junk=st.binary(min_size=1, max_size=SIZE))
def test_any_run_of_other_bytes_is_seen(start: int, junk: bytes) -> None:
    record = record_of(ADDRESS, SIZE)
    before = bytes(record)
    junk = junk[: SIZE - start]
    record[start : start + len(junk)] = junk
    outcome = examine(record, ADDRESS, form_of(SIZE))
    assert (outcome == Found()) == (bytes(record) == before)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, SIZE - 2, SIZE - 1])
def test_a_record_cut_short_is_seen_even_by_one_who_knows_no_form(inner: DictTier, tier: Verified, size: int) -> None:
    put(inner, record_of(ADDRESS, SIZE)[:size])
    assert reason(tier.read([read_of(ADDRESS)])[0])
    into = memoryview(bytearray(size))
    assert reason(tier.read([Read(address=ADDRESS, into=into)])[0])


def test_bytes_behind_the_record_are_seen(inner: DictTier, tier: Verified) -> None:
    put(inner, bytes(record_of(ADDRESS, SIZE)) + b"\0\0")
    into = memoryview(bytearray(SIZE + 2))
    assert "602 bytes long" in reason(tier.read([Read(address=ADDRESS, into=into)])[0])


def test_a_sound_record_of_another_key_tenant_or_form_is_seen(inner: DictTier, tier: Verified) -> None:
    other, stranger = Address(key=key_of(1), tenant=BLUE), Address(key=ADDRESS.key, tenant=RED)
    for record, why in (
        (record_of(other, SIZE), "another block"),
        (record_of(stranger, SIZE), "another tenant"),
    ):
        put(inner, record)
        assert why in reason(tier.read([read_of(ADDRESS)])[0])
    put(inner, record_of(ADDRESS, SIZE))
    form = replace(form_of(SIZE), part=Part(1, 1, 0, 1))
    read = Read(address=ADDRESS, into=memoryview(bytearray(SIZE)), form=form)
    assert "its form is" in reason(tier.read([read])[0])
    assert tier.read([replace(read, form=None)]) == [Found()]


def test_garbage_and_zeros_are_damage(inner: DictTier, tier: Verified) -> None:
    for junk in (bytes(SIZE), b"\xff" * SIZE, b"KVST" * (SIZE // 4)):
        put(inner, junk)
        assert reason(tier.read([read_of(ADDRESS)])[0])


def test_one_damaged_record_harms_no_other_and_absence_stays_absence(inner: DictTier, tier: Verified) -> None:
    addresses = [Address(key=key_of(number), tenant=BLUE) for number in range(4)]
    tier.write([write_of(address) for address in addresses[:3]])
    put(inner, bytes(SIZE), addresses[1])
    outcomes = tier.read([read_of(address) for address in addresses])
    assert [type(outcome) for outcome in outcomes] == [Found, Damaged, Found, Absent]


def test_a_record_under_a_false_address_is_our_own_mistake_and_not_stored(inner: DictTier, tier: Verified) -> None:
    sound, other = write_of(ADDRESS), Address(key=key_of(1), tenant=BLUE)
    unstamped = memoryview(bytearray(SIZE))
    longer = memoryview(bytearray(bytes(sound.record) + b"\0\0"))
    for wrong in (
        replace(sound, address=other),
        replace(sound, address=Address(key=ADDRESS.key, tenant=RED)),
        replace(sound, record=unstamped),
        replace(sound, record=longer),
        replace(sound, record=sound.record[:100]),
    ):
        with pytest.raises(AssertionError, match="would"):
            tier.write([write_of(other), wrong])
    assert list(inner.entries()) == []


class TestLent:
    @pytest.mark.parametrize("form", [form_of(SIZE), None])
    def test_a_place_is_sound_whatever_lies_behind_the_record(self, form: object) -> None:
        place = memoryview(bytearray(bytes(record_of(ADDRESS, SIZE)) + b"\xee" * 40))
        (found,) = [examine_lent(place, ADDRESS, form)]
        assert isinstance(found, Found)
        assert found.header is not None
        assert found.header.key == ADDRESS.key

    @pytest.mark.parametrize("form", [form_of(SIZE), None])
    def test_a_place_without_the_record_is_damaged(self, form: object) -> None:
        record = record_of(ADDRESS, SIZE)
        flipped = bytearray(record)
        flipped[-1] ^= 1
        for junk in (b"", bytes(SIZE), bytes(record[:100]), bytes(record[: SIZE - 2]), bytes(flipped)):
            assert reason(examine_lent(memoryview(bytearray(junk)), ADDRESS, form))

    def test_a_header_that_claims_more_than_there_is_reads_nothing_outside(self) -> None:
        huge = memoryview(bytearray(2**16))
        header = replace(read_header(record_of(ADDRESS, SIZE)), form=form_of(2**16))
        stamp_record(huge, header)
        assert "bytes long" in reason(examine_lent(huge[:SIZE], ADDRESS, None))

    def test_only_a_tier_that_lends_is_a_lender(self, inner: DictTier) -> None:
        with memory_trial() as trial:
            lending = verified(trial.tier)
            assert isinstance(lending, VerifiedLender)
            assert isinstance(lending, Lender)
            write = write_of(trial.address(0))
            lending.write([write])
            (place,) = lending.lend([write.address])
            assert examine_lent(place, write.address, form_of(SIZE)) == Found()
        assert not isinstance(verified(inner), Lender)
