"""A suppression of a checker carries its reason, beside it or on the line above."""

import io
import re
import tokenize
from collections.abc import Callable, Iterator

SUPPRESSION = re.compile(
    r"#\s*(?:ruff:\s*)?(?:"
    r"noqa(?::\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?"
    r"|type:\s*ignore(?:\[[^\]]*\])?|fmt:\s*\w+|mypy:\s*[\w-]+|pragma:\s*no \w+)"
)
BLANKET = re.compile(r"#\s*(?:ruff:\s*)?(?:noqa(?!:)|type:\s*ignore(?!\[))")


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Each comment with its line; text inside strings is none."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def comment_above(lines: list[str]) -> str:
    """The comment that heads a paragraph of suppressions, given the lines before one of them."""
    unsuppressed = (line.strip() for line in reversed(lines) if line.strip() and not SUPPRESSION.search(line))
    nearest = next(unsuppressed, "")
    return nearest if nearest.startswith("#") else ""


def unexplained(name: str, text: str) -> list[str]:
    """Complains of suppressions that give no reason or silence everything."""
    lines = text.splitlines()
    complaints = []
    for line, comment in comments(text):
        match = SUPPRESSION.search(comment)
        if not match:
            continue
        reason = SUPPRESSION.sub("", comment) + comment_above(lines[: line - 1])
        if not re.search(r"\w", reason):
            complaints.append(f"{name}:{line}: {comment!r} gives no reason")
        if BLANKET.search(comment):
            complaints.append(f"{name}:{line}: {comment!r} names no rule")
    return complaints


def test_every_suppression_says_why(python_files: dict[str, str], hold: Callable[..., None]) -> None:
    hold(unexplained, python_files)


def test_a_suppression_without_a_reason_is_seen() -> None:
    for wrong in (
        "x = f()  # noqa: S603",
        "x = f()  # noqa: S603, PLR0913",
        "x = f()  # type: ignore[misc]",
        "# ruff: noqa: D100",
        "# about y\ny = 1\nx = f()  # noqa: S603",
        "x = f()  # pragma: no cover",
    ):
        assert len(unexplained("a.py", wrong)) == 1, wrong


def test_a_suppression_of_everything_is_seen_even_with_a_reason() -> None:
    for wrong in (
        "x = f()  # noqa  # it is fine",
        "x = f()  # type: ignore  # the stubs are wrong",
        "# ruff: noqa  # old file",
    ):
        assert any("names no rule" in each for each in unexplained("a.py", wrong)), wrong


def test_a_reason_is_found_beside_and_above() -> None:
    for fine in (
        "x = f()  # noqa: S603  # the path is ours",
        "x = f()  # noqa: S603, PLR0913 - the path is ours",
        "x = f()  # type: ignore[misc]  # the misuse under test",
        "# the stubs lack this argument\nx = f()  # type: ignore[call-arg]",
        "# late: they are slow\nimport a  # noqa: PLC0415\n\nimport b  # noqa: PLC0415",
        "x = '# noqa'",
    ):
        assert unexplained("a.py", fine) == [], fine
