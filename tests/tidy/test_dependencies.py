"""What is installed is what was tested: every dependency is exact, or a range with an exact version beside it."""

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

_EXACT = re.compile(r"([a-z0-9-]+)==([0-9.]+)")
_RANGE = re.compile(r"([a-z0-9-]+)>=([0-9.]+),<([0-9.]+)")

Version = tuple[int, ...]


def version(text: str) -> Version:
    """Numbers of a release, to be compared."""
    return tuple(map(int, text.split(".")))


def pins(constraints: str) -> dict[str, Version]:
    """Exact versions by name; every other line is a comment."""
    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    found = [_EXACT.fullmatch(line) for line in lines]
    assert all(found), f"not one exact version a line: {lines}"
    return {match[1]: version(match[2]) for match in found if match}


def complaints(required: Iterable[str], pinned: dict[str, Version]) -> list[str]:
    """What does not hold between requirements and the exact versions beside them."""
    found: list[str] = []
    ranges = set()
    for text in required:
        if _EXACT.fullmatch(text):
            continue
        match = _RANGE.fullmatch(text)
        if match is None:
            found.append(f"{text}: neither exact nor a range with both ends")
            continue
        name, low, high = match[1], version(match[2]), version(match[3])
        ranges.add(name)
        if name not in pinned:
            found.append(f"{text}: no exact version in constraints.txt")
        elif not low <= pinned[name] < high:
            found.append(f"{text}: constraints.txt is outside")
    return found + [
        f"{name}: constraints.txt has it and no range asks for it" for name in sorted(pinned.keys() - ranges)
    ]


def required_by(pyproject: str) -> list[str]:
    """Requirements of the package and of its extras, apart from extras that name extras."""
    project = tomllib.loads(pyproject)["project"]
    extras = project.get("optional-dependencies", {})
    return [text for texts in (project["dependencies"], *extras.values()) for text in texts if "[" not in text]


def test_ranges_and_exact_versions_fit_each_other(root: Path) -> None:
    required = required_by((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert complaints(required, pins((root / "constraints.txt").read_text(encoding="utf-8"))) == []


def test_these_tests_run_with_the_exact_versions(root: Path) -> None:
    pinned = pins((root / "constraints.txt").read_text(encoding="utf-8"))
    assert {name: version(importlib.metadata.version(name)) for name in pinned} == pinned


@pytest.mark.parametrize(
    ("required", "pinned", "complaint"),
    [
        (["a==1.0"], {}, []),
        (["a>=1.0,<2"], {"a": (1, 5)}, []),
        (["a>=1.0,<2"], {"a": (1, 0)}, []),
        (["a>=1.0,<2"], {"a": (2,)}, ["a>=1.0,<2: constraints.txt is outside"]),
        (["a>=1.10,<2"], {"a": (1, 9)}, ["a>=1.10,<2: constraints.txt is outside"]),
        (["a>=1.0,<2"], {}, ["a>=1.0,<2: no exact version in constraints.txt"]),
        (["a"], {}, ["a: neither exact nor a range with both ends"]),
        (
            ["a>=1"],
            {"a": (1,)},
            ["a>=1: neither exact nor a range with both ends", "a: constraints.txt has it and no range asks for it"],
        ),
        (["a==1"], {"a": (1,)}, ["a: constraints.txt has it and no range asks for it"]),
    ],
)
def test_what_does_not_fit_is_seen(required: list[str], pinned: dict[str, Version], complaint: list[str]) -> None:
    assert complaints(required, pinned) == complaint


def test_lines_that_are_no_exact_version_are_seen() -> None:
    assert pins("# why\n\na-b==1.2.3\n") == {"a-b": (1, 2, 3)}
    for line in ("a", "a>=1", "a==1.*", "-r other.txt", "a==1 # why"):
        with pytest.raises(AssertionError, match="exact version a line"):
            pins(line)
