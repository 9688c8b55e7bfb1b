"""Findings are single lines that no terminal obeys."""

import pytest

from kvist.app.doctor_findings import note, ok, problem, shown


def test_each_says_how_serious_it_is() -> None:
    assert [make("x", "y").status for make in (ok, note, problem)] == ["ok", "note", "problem"]
    assert problem("tier disk", "bad", "mend it").remedy == "mend it"


def test_what_others_wrote_stays_on_its_line_and_is_bounded() -> None:
    found = problem("x", "a\n\tb\x1b[31m\0c", "d\r\ne")
    assert (found.text, found.remedy) == ("a b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}c", "d e")
    assert len(ok("x", "y" * 10**6).text) == 1000


@pytest.mark.parametrize(
    ("value", "text"), [("kv_both", "'kv_both'"), (None, "None"), (7, "7"), ([1] * 99, "[1, 1, 1...")]
)
def test_values_are_shown_short(value: object, text: str) -> None:
    assert shown(value, longest=8) == text
