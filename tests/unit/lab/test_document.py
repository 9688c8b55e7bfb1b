from hypothesis import given
from hypothesis import strategies as st

from kvist.lab.document import inventory


@given(lines=st.integers(0, 120), seed=st.integers(0, 2**40))
def test_an_inventory_has_so_many_numbered_lines_and_grows_at_its_end(lines: int, seed: int) -> None:
    text = inventory(lines, seed)
    found = text.splitlines()
    assert len(found) == lines
    assert all(line.startswith(f"Entry {number}: ") for number, line in enumerate(found, start=1))
    assert inventory(120, seed).startswith(text)


def test_another_seed_gives_another_inventory() -> None:
    assert inventory(3, 0) == inventory(3, 0)
    assert inventory(3, 0) != inventory(3, 1)
    assert inventory(500, 0).isascii()
