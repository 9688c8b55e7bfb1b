"""The tree of errors is the one its module draws, and each family can be caught by its parent."""

import inspect
import re

import pytest

from kvist.base import errors
from kvist.base.errors import ConfigError, KvistError, ModelError, RequestError, TierError

ERRORS = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, KvistError)]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_is_caught_by_the_root_and_keeps_its_message(error: type[KvistError]) -> None:
    named = {"tier": "disk"} if issubclass(error, TierError) else {}
    with pytest.raises(KvistError, match="'7' is not enough"):
        raise error("'7' is not enough", **named)


def test_the_drawing_names_every_error_and_no_other() -> None:
    drawn = re.findall(r"\w+Error", errors.__doc__ or "")
    assert sorted(drawn) == sorted(error.__name__ for error in ERRORS)


def test_families_do_not_overlap_except_as_drawn() -> None:
    parents = {error.__name__: error.__mro__[1].__name__ for error in ERRORS}
    assert parents.pop("KvistError") == "Exception"
    assert parents.pop("ModelError") == "ConfigError"
    assert {parents.pop(f"Tier{kind}Error") for kind in ("Unavailable", "Timeout", "Full")} == {"TierError"}
    assert set(parents.values()) == {"KvistError"}


def test_a_broken_model_is_the_operators_to_mend() -> None:
    with pytest.raises(ConfigError):
        raise ModelError("model.safetensors ends early")


def test_a_request_error_names_the_field_to_blame_or_none() -> None:
    assert RequestError("too long", param="prompt").param == "prompt"
    assert RequestError("too long").param is None
    assert str(RequestError("too long", param="prompt")) == "too long"


def test_the_field_is_given_by_name_only() -> None:
    with pytest.raises(TypeError):
        RequestError("too long", "prompt")  # type: ignore[misc]  # the misuse under test


def test_a_tier_error_names_the_tier_first() -> None:
    error = TierError("no answer", tier="pool")
    assert (error.tier, str(error)) == ("pool", "pool: no answer")


def test_every_error_says_what_it_is_for() -> None:
    assert [error.__name__ for error in ERRORS if not inspect.getdoc(error)] == []


@pytest.mark.parametrize("kind", [TierError, *TierError.__subclasses__()])
def test_what_a_tier_said_moves_no_cursor_and_begins_no_line(kind: type[TierError]) -> None:
    said = "".join(map(chr, (*range(32), 127, *range(128, 160), 0x202E, 0x2028, 0xD800))) + "\x1b]0;title\x07\x1b[2J"
    text = str(kind(f"it said {said} é", tier="po\x1b[31mol"))
    assert text.isprintable()
    assert text.startswith("po")
    assert text.endswith("é")
