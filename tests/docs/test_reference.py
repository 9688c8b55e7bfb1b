"""The generated reference says what the code says, now."""

import argparse
import inspect
import runpy
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from kvist.base import errors
from kvist.server import errors as answers

ROOT = Path(__file__).parents[2]
GENERATOR = runpy.run_path(str(ROOT / "scripts" / "generate-reference"))


def page(name: str) -> str:
    """A page of the reference as it is in the repository."""
    return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GENERATOR["pages"]())
def test_a_generated_page_is_current(name: str) -> None:
    assert page(name) == GENERATOR["pages"]()[name], "run .venv/bin/python scripts/generate-reference"


def test_the_error_page_has_a_section_for_every_error() -> None:
    names = [
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    ]
    assert [name for name in names if f"\n## `{name}`\n" not in page("errors.md")] == []


def test_an_error_page_shows_the_drawing_the_parents_and_the_attributes() -> None:
    text = GENERATOR["errors_page"](errors)
    assert "```text\nKvistError\n├── ConfigError" in text
    assert "Derives from `ConfigError`. A model's files" in text
    assert "\n- param: name of the offending" in text


def test_a_module_without_a_drawing_gets_no_fence() -> None:
    assert "```" not in GENERATOR["errors_page"](types.ModuleType("kvist.none", "Nothing is drawn here."))


def test_the_answers_of_the_api_are_listed_with_their_codes() -> None:
    source = """
raise ApiError("no", code="bad_value", param=name)
raise ApiError("no", family=BUSY, code="full")
raise ApiError("no", family=Family(status=1), code="odd_code")
raise Other("no", code="not_ours")
"""
    text = GENERATOR["answers_section"](answers, [source])
    assert "| 400 | `invalid_request_error` | `bad_value` |" in text
    assert "| 429 | `rate_limit_error` | `full` |" in text
    assert "(`Retry-After: 1`)" in text
    assert "odd_code" not in text
    assert "not_ours" not in text


@pytest.fixture
def command_page() -> Callable[[argparse.ArgumentParser], str]:
    """The generator of the page of commands."""
    return GENERATOR["cli_page"]


def test_a_command_page_shows_every_command_with_its_arguments(command_page: Callable) -> None:
    parser = argparse.ArgumentParser(prog="tool", description="Does things.")
    parser.add_argument("--version", action="store_true", help="say which one of %(prog)s this is")
    plant = parser.add_subparsers().add_parser("plant", description="Plants a | tree.", epilog="trees:\n  oak")
    plant.add_argument("kind", help="what grows")
    plant.add_argument("--height-max", "-m", default=3, metavar="METRES", help="no taller | than this (%(default)s)")
    plant.add_argument("--soil", choices=["clay", "sand"], required=True, help="where")
    plant.add_argument("--secret", help=argparse.SUPPRESS)
    text = command_page(parser)
    assert "## `tool`\n\nDoes things.\n" in text
    assert "| `--version` | | | say which one of tool this is |" in text
    assert "## `tool plant`" in text
    assert "| `kind` | `KIND` | required | what grows |" in text
    assert "| `--height-max`, `-m` | `METRES` | `3` | no taller \\| than this (3) |" in text
    assert "| `--soil` | `clay`, `sand` | required | where |" in text
    assert "```text\ntrees:\n  oak\n```" in text
    assert "secret" not in text
    assert "--help`, " not in text
