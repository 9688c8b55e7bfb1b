import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.base.units import Tokens
from kvist.blocks.window import Marks, Retention, first_block_of_hit

Sizes = st.integers(1, 9)
Windows = st.integers(1, 40).map(Tokens)


@pytest.mark.parametrize(
    ("tokens", "window", "block_tokens", "first"),
    [
        (0, 8, 4, 0),
        (64, None, 16, 0),
        (64, 32, 16, 2),
        (64, 33, 16, 1),
        (64, 31, 16, 2),
        (64, 1, 16, 3),
        (64, 64, 16, 0),
        (64, 1000, 16, 0),
    ],
)
def test_the_first_block_of_a_hit(tokens: int, window: int | None, block_tokens: int, first: int) -> None:
    assert first_block_of_hit(tokens, None if window is None else Tokens(window), block_tokens) == first


@given(st.integers(0, 30), Sizes, Windows)
def test_a_hit_needs_the_blocks_that_cover_its_window_and_no_others(blocks: int, size: int, window: Tokens) -> None:
    tokens = blocks * size
    needed = {position // size for position in range(max(0, tokens - window), tokens)}
    assert set(range(first_block_of_hit(tokens, window, size), blocks)) == needed


@given(st.integers(0, 30), Sizes, Windows)
def test_the_next_query_sees_nothing_before_the_hit(blocks: int, size: int, window: Tokens) -> None:
    tokens = blocks * size
    assert first_block_of_hit(tokens, window, size) * size <= max(0, tokens - window + 1)


@given(st.data(), Sizes, Windows)
def test_what_is_kept_is_exactly_the_windows_before_checkpoints(data: st.DataObject, size: int, window: Tokens) -> None:
    """Brute force: list every checkpoint, then ask whether a hit that ends there needs the block."""
    every, slack = data.draw(st.integers(1, 50)), data.draw(st.integers(0, 30))
    prompt = data.draw(st.integers(1, 100))
    branches = tuple(n * size for n in data.draw(st.lists(st.integers(1, 20), max_size=2)))
    retention = Retention(checkpoint_tokens=Tokens(every), slack_tokens=Tokens(slack))
    earliest = (prompt - slack) // size * size
    checkpoints = {
        *(number * every // size * size for number in range(1, 300 // every + 2)),
        *range(max(0, earliest), prompt + 1, size),
        *branches,
    }
    for index in range(120 // size):
        needed = any(first_block_of_hit(n, window, size) <= index < n // size for n in checkpoints)
        kept = retention.keeps(index * size, (index + 1) * size, window, Marks(prompt_tokens=prompt, branches=branches))
        assert kept == needed, f"block {index}"


@given(st.integers(0, 100), Sizes)
def test_without_a_window_everything_is_kept(index: int, size: int) -> None:
    assert Retention().keeps(index * size, (index + 1) * size, None, Marks(prompt_tokens=1))
