"""What the documents show works: Python is true, commands exist and parse, links lead somewhere."""

import ast
import doctest
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kvist.cli.main import build_parser

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "changelog").glob("*.md")])
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
LANGUAGES = {"python", "console", "json", "toml", "text"}
SYSTEM = {"curl", "git", "python3", "cd"}
"""Commands of the reader's machine that a document may use beside our own."""


class Fence(NamedTuple):
    """A fenced block of a document."""

    line: int
    language: str
    text: str


def fences(document: str) -> Iterator[Fence]:
    """The fenced blocks of a document; one that is never closed runs to its end."""
    opened: Fence | None = None
    for number, line in enumerate(document.splitlines(), start=1):
        if opened is None and line.lstrip().startswith("```"):
            opened = Fence(number, line.strip().removeprefix("```"), "")
        elif opened is not None and line.strip() == "```":
            yield opened
            opened = None
        elif opened is not None:
            opened = opened._replace(text=f"{opened.text}{line}\n")
    if opened is not None:
        yield opened._replace(language="never closed")


def wrong_python(text: str, session: dict[str, object]) -> list[str]:
    """Complains of Python that does not compile and of examples that are not true.

    The examples of one document share a session, so that a later one may go on from an earlier one.
    """
    if ">>>" not in text:
        try:
            ast.parse(text)
        except SyntaxError as error:
            return [f"does not compile: {error.msg}"]
        return []
    reports: list[str] = []
    test = doctest.DocTestParser().get_doctest(text, session, "document", None, 0)
    test.globs = session  # not the copy that a test usually runs in
    doctest.DocTestRunner(verbose=False, optionflags=OPTIONS).run(test, out=reports.append, clear_globs=False)
    return reports


def commands(text: str) -> Iterator[str]:
    """The commands of a console: what follows a ``$``, continued lines joined; the rest is their output."""
    joined = text.replace("\\\n", " ")
    return (line.strip().removeprefix("$ ") for line in joined.splitlines() if line.strip().startswith("$ "))


def wrong_command(command: str) -> list[str]:
    """Complains of a command that is neither ours nor a well-known one, and of arguments that we do not take."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError as error:
        return [f"{command!r}: {error}"]
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    program = words[0].removeprefix(".venv/bin/") if words else ""
    if program == "kvist":
        return [] if accepts(words[1:]) else [f"{command!r}: kvist does not take these arguments"]
    if program.startswith(("scripts/", ".ci/")):
        return [] if (ROOT / program).is_file() else [f"{command!r}: there is no {program}"]
    ours = program in {"python", "pytest", "ruff", "mypy", "lint-imports"} and words[0].startswith(".venv/bin/")
    return [] if ours or program in SYSTEM else [f"{command!r}: what is {program!r}?"]


def accepts(arguments: list[str]) -> bool:
    """Whether the command line parses; asking for help or the version counts."""
    try:
        build_parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code in (0, None)
    return True


def wrong_fence(fence: Fence, session: dict[str, object]) -> list[str]:
    """Complains of a block whose content is not what its language says."""
    match fence.language:
        case "python":
            return wrong_python(fence.text, session)
        case "console":
            found = list(commands(fence.text))
            return [each for command in found for each in wrong_command(command)] or ([] if found else ["no command"])
        case "json" | "toml":
            try:
                json.loads(fence.text) if fence.language == "json" else tomllib.loads(fence.text)
            except ValueError as error:
                return [f"is no {fence.language}: {error}"]
        case language if language not in LANGUAGES:
            return [f"language {language!r}; say one of {', '.join(sorted(LANGUAGES))}"]
    return []


def wrong_links(document: str, folder: Path) -> list[str]:
    """Complains of relative links that lead to no file."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", document, flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    local = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    return [f"links to {target}, which is not there" for target in local if target and not (folder / target).exists()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_document_shows_works(path: Path) -> None:
    document = path.read_text(encoding="utf-8")
    session: dict[str, object] = {}
    complaints = [
        f"line {fence.line}: {complaint}" for fence in fences(document) for complaint in wrong_fence(fence, session)
    ]
    complaints += wrong_links(document, path.parent)
    assert not complaints, "\n".join(complaints)


def test_every_document_can_be_reached_from_the_index() -> None:
    reached, queue = set(), [ROOT / "README.md"]
    while queue:
        path = queue.pop().resolve()
        if path in reached or path.suffix != ".md" or not path.exists():
            continue
        reached.add(path)
        targets = re.findall(r"\]\(([^)\s#]+)[^)]*\)", path.read_text(encoding="utf-8"))
        queue += [path.parent / target for target in targets if ":" not in target]
    pages = [path for path in DOCUMENTS if "changelog" not in path.parts]
    assert [path.relative_to(ROOT).as_posix() for path in pages if path not in reached] == []


def one(language: str, text: str) -> list[str]:
    """The complaints about a document of one block."""
    return [each for fence in fences(f"```{language}\n{text}\n```") for each in wrong_fence(fence, {})]


def test_wrong_python_is_seen() -> None:
    assert one("python", "import kvist") == []
    assert len(one("python", "def f(:")) == 1
    assert one("python", ">>> 1 + 1\n2") == []
    assert len(one("python", ">>> 1 + 1\n3")) == 1


def test_the_examples_of_a_document_go_on_from_each_other() -> None:
    session: dict[str, object] = {}
    assert wrong_python(">>> a = 20", session) == wrong_python(">>> a + 1\n21", session) == []
    assert len(wrong_python(">>> b\n21", session)) == 1


def test_wrong_commands_are_seen() -> None:
    assert one("console", "$ kvist --help\nusage: kvist") == []
    assert one("console", "$ scripts/check --fast   # the loop") == []
    assert one("console", "$ curl -s http://127.0.0.1:8000/health") == []
    assert one("console", "$ OMP_NUM_THREADS=2 .venv/bin/pytest tests \\\n    -q") == []
    for wrong in ("$ kvist --no-such-flag", "$ scripts/no-such-script", "$ pytest", "$ echo 'open", "only output"):
        assert len(one("console", wrong)) == 1, wrong


def test_other_blocks_are_what_they_say() -> None:
    assert one("json", '{"a": 1}') == one("toml", "a = 1") == one("text", "a -> b") == []
    assert len(one("json", "{a: 1}")) == len(one("toml", "a =")) == len(one("", "x")) == len(one("bash", "x")) == 1
    assert [fence.language for fence in fences("```python\nx = 1\n")] == ["never closed"]


def test_a_dead_link_is_seen_and_code_is_no_link() -> None:
    assert len(wrong_links("[a](no/such/file.md)", ROOT)) == 1
    assert wrong_links("[a](README.md#top), [b](https://example.com/x), [c](#here), `f[x](y)`", ROOT) == []
