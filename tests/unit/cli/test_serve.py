"""The flags of `kvist serve`: what they mean is in the configuration, what they say is true."""

import argparse
import re
import subprocess
import sys

import pytest

from kvist.app.config import ServeConfig
from kvist.base.units import parse_bytes
from kvist.cli.main import build_parser
from kvist.cli.serve import settings

NO_ENGINE = """
import sys
sys.modules[{module!r}] = None
from kvist.cli.main import main
sys.exit(main(["serve", "--model", "nonsense"]))
"""


def parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["serve", *arguments])


def helps() -> dict[str, str]:
    """What help says of each flag, by the setting's name."""
    commands = next(each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return {each.dest: each.help or "" for each in commands.choices["serve"]._actions}


def test_flags_are_taken_as_text_and_only_switches_have_a_default() -> None:
    given = settings(parsed("--port", "x", "--kv-memory", "1GiB", "--served-model-name", ""))
    assert {name: value for name, value in given.items() if value not in {None, False}} == {
        "port": "x",
        "kv_memory": "1GiB",
        "served_model_name": "",
    }


def test_a_flag_given_twice_is_what_was_said_last() -> None:
    assert settings(parsed("--port", "1", "--port", "2"))["port"] == "2"


def test_the_audit_is_a_setting_when_it_is_asked_for() -> None:
    assert settings(parsed("--audit"))["audit"] is True
    assert settings(parsed())["audit"] is None


def test_the_demonstration_is_asked_for_and_no_setting() -> None:
    assert parsed().demo is False
    assert parsed("--demo").demo is True
    assert "demo" not in settings(parsed("--demo"))


FLAGS = tuple(name for name in ServeConfig.model_fields if name != "tiers")
"""Tiers are given one by one, with `--tier`."""


@pytest.mark.parametrize("name", FLAGS)
def test_help_tells_every_default_as_it_is(name: str) -> None:
    default = ServeConfig.model_fields[name].default
    told = re.search(r"\(([^()]*)\)$", helps()[name])
    if default is False:
        assert told is None, "a switch is off unless given"
    elif default is not None:
        assert told is not None, helps()[name]
        if name.endswith("memory"):
            assert parse_bytes(told.group(1)) == default
            return
        assert told.group(1) == f"{default:g}" if isinstance(default, float) else told.group(1) == str(default)


def test_help_names_every_flag_on_a_narrow_terminal_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    with pytest.raises(SystemExit):
        parsed("--help")
    said = " ".join(capsys.readouterr().out.split())
    for name in (*FLAGS, "tier"):
        assert f"--{name.replace('_', '-')} " in said


@pytest.mark.parametrize("module", ["torch", "transformers", "safetensors"])
def test_without_the_engine_s_packages_it_says_what_to_install(module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", NO_ENGINE.format(module=module)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"kvist serve: {module} is not installed; run: ")
    assert "kvist[engine]" in line


IMPORTED = """
import gc
from kvist.cli.main import main
assert main(["serve", "--model", "/nowhere", "--kv-memory", "1MiB", "--port", "0"]) != 0
print(gc.isenabled(), gc.get_freeze_count(), *(len(gc.get_objects(generation)) for generation in range(3)))
"""


def test_what_was_imported_is_not_searched_for_garbage_and_what_comes_after_it_is() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    enabled, frozen, *searched = run.stdout.split()
    assert enabled == "True"
    assert int(frozen) > 100_000
    assert sum(map(int, searched)) < 20_000
