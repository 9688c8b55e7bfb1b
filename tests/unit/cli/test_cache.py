"""The flags of `kvist cache`: each verb explains itself at once, and every verb of the server has its own."""

import argparse
import json
import subprocess
import sys

import pytest

from fakes.operated import operator
from kvist.cli.main import build_parser

HEAVY = {"torch", "transformers", "fastapi", "uvicorn", "pydantic", "numpy", "httpx", "redis", "sqlite3", "rich"}


def verbs() -> dict[str, argparse.ArgumentParser]:
    """The parsers of the verbs, by name."""

    def below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
        action = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
        return dict(action.choices)

    return below(below(build_parser())["cache"])


@pytest.mark.parametrize("arguments", [["cache", "--help"], ["cache", "list", "--help"], ["cache", "move"]])
def test_help_and_mistakes_load_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import json, sys\nfrom kvist.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert HEAVY.isdisjoint(json.loads(run.stderr.splitlines()[-1]))


def test_the_commands_are_those_that_a_server_knows() -> None:
    with operator() as there:
        assert set(verbs()) == set(there.verbs._verbs)


def test_every_flag_says_what_it_is_for_and_every_verb_prints_json() -> None:
    for name, parser in verbs().items():
        assert parser.description, name
        assert all(action.help for action in parser._actions), name
        assert "--json" in parser.format_help()
