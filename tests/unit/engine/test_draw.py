import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from kvist.engine.draw import uniform, uniforms

Seeds = st.integers(-(2**63), 2**64 - 1)
Places = st.integers(0, 2**31)


@given(Seeds, Places)
def test_a_number_is_in_its_range_and_depends_on_nothing_else(seed: int, index: int) -> None:
    assert 0.0 <= uniform(seed, index) < 1.0
    assert uniform(seed, index) == uniform(seed, index)


@given(Seeds, Seeds, Places, Places)
def test_seeds_and_places_each_matter(one: int, two: int, here: int, there: int) -> None:
    assert (uniform(one, here) == uniform(two, there)) == ((one, here) == (two, there))


def test_seed_and_place_do_not_run_into_each_other() -> None:
    assert uniform(1, 11) != uniform(11, 1) != uniform(111, 1)
    assert uniform(-1, 1) != uniform(1, 1)


@given(Seeds, Places)
def test_a_number_is_53_bits_of_the_stream_of_its_seed(seed: int, index: int) -> None:
    bits = int.from_bytes(blake3(str(seed).encode()).digest(length=8, seek=8 * index), "little") // 2**11
    assert uniform(seed, index) == bits / 2**53


@given(Seeds, Places, st.integers(0, 40))
def test_numbers_made_together_are_those_made_one_by_one(seed: int, start: int, count: int) -> None:
    assert uniforms(seed, start, count) == [uniform(seed, start + place) for place in range(count)]


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_numbers_are_spread_evenly(seed: int) -> None:
    numbers = [uniform(seed, index) for index in range(10_000)]
    tenths = [sum(low / 10 <= number < (low + 1) / 10 for number in numbers) for low in range(10)]
    # Each count has a standard deviation of 30: five of them are never left by chance.
    assert all(abs(count - 1000) < 150 for count in tenths), tenths
