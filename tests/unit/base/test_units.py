"""Sizes are read exactly, written readably, and never guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.base.errors import ConfigError
from kvist.base.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1B", 1),
        ("2GiB", 2 * 2**30),
        ("2gib", 2 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("  512MiB\n", 512 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("1.5GiB", 3 * 2**29),
        ("0.5KiB", 512),
        ("3TiB", 3 * 2**40),
        ("3TB", 3 * 10**12),
        ("1.9B", 1),
        ("007KiB", 7 * 2**10),
    ],
)
def test_a_size_with_its_unit_is_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "GiB",
        "0",
        "0GiB",
        "0.0000001B",
        "-1",
        "-1GiB",
        "+1GiB",
        "1e9",
        "1e9GiB",
        "0x10",
        "1_000",
        "1,5GiB",
        "1.GiB",
        ".5GiB",
        "1..5GiB",
        "1.0000000000GiB",
        "NaN",
        "nan GiB",
        "inf",
        "Infinity",
        "9" * 500,
        "9" * 19,
        "1PiB",
        "1Gib/s",
        "1GiBB",
        "1 G iB",
        "1GiB 2GiB",
        "1GiB\x00",
        "1\nGiB x",
        "\u0662GiB",  # ARABIC-INDIC DIGIT TWO
        "\uff12GiB",  # FULLWIDTH DIGIT TWO
        "\u00b2GiB",  # SUPERSCRIPT TWO
        "2\u212aB",  # KELVIN SIGN, which upper-cases like K elsewhere
        "2G\u0131B",  # DOTLESS I, whose upper case is I
        "2\u00a0GiB",  # NO-BREAK SPACE
        "--kv-memory",
        "$(2GiB)",
    ],
)
def test_anything_else_is_refused_with_the_value_and_the_remedy(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bytes(text)
    assert repr(text[:40]) in str(caught.value)
    assert "2GiB" in str(caught.value)


def test_the_largest_number_that_is_read_stays_a_whole_number_of_bytes() -> None:
    size = parse_bytes("9" * 18 + "TiB")
    assert isinstance(size, int)
    assert size > 10**29


@given(st.text(max_size=40))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        size = parse_bytes(text)
    except ConfigError:
        return
    assert size > 0


@given(st.integers(min_value=1, max_value=10**15))
def test_whole_bytes_are_read_exactly(size: int) -> None:
    assert parse_bytes(f"{size}") == size
    assert parse_bytes(f"{size}KiB") == size * 2**10


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (2**40, "1.0 TiB"),
        (2**50, "1024.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_a_size_is_written_with_the_unit_that_keeps_it_readable(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(min_value=1, max_value=2**50))
def test_what_is_written_reads_back_within_the_rounding_shown(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.05, abs=1)
