"""The scripts that set everything up parse, refuse what they do not know, and say what they lack."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from real.redis import binary

BASH_SCRIPTS = [
    "scripts/check",
    "scripts/serve",
    "scripts/test-vllm",
    "scripts/environment.sh",
    "bench/peers/vllm_cpu",
    ".ci/run",
]


def bash(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs bash with nothing on its input."""
    return subprocess.run(
        ["bash", *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
    )


def sourced(root: Path, commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs commands as one of the scripts would, after the shared part."""
    shared = root / "scripts" / "environment.sh"
    return bash("-c", f'set -euo pipefail; . "{shared}"; {commands}', **environment)


@pytest.mark.parametrize("name", BASH_SCRIPTS)
def test_a_script_parses_and_can_be_run(root: Path, name: str) -> None:
    assert bash("-n", str(root / name)).returncode == 0
    assert os.access(root / name, os.X_OK) == (not name.endswith(".sh"))


def test_ci_runs_the_gate_and_nothing_else(root: Path) -> None:
    lines = (root / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert len(lines) == 2
    assert lines[1].endswith('/scripts/check"')


@pytest.mark.parametrize("arguments", [["--no-such"], ["--fast", "more"], ["-q"]])
def test_the_gate_refuses_arguments_that_it_does_not_know(root: Path, arguments: list[str]) -> None:
    answer = bash(str(root / "scripts" / "check"), *arguments)
    assert answer.returncode == 2
    assert "kvist: " in answer.stderr
    assert "==" not in answer.stdout


def test_the_gate_explains_itself_and_whose_terms_a_run_accepts(root: Path) -> None:
    answer = bash(str(root / "scripts" / "check"), "--help")
    assert answer.returncode == 0
    assert "--fast" in answer.stdout
    assert "accepts the Gemma Terms of Use" in answer.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["no-such"], ["make", "more"], ["run"], ["run", "--"], ["run", "-c"], ["serve"], ["resolve"]]
)
def test_the_script_of_a_peer_refuses_arguments_that_it_does_not_know(
    root: Path, tmp_path: Path, arguments: list[str]
) -> None:
    answer = bash(str(root / "bench" / "peers" / "vllm_cpu"), *arguments, KVIST_PEERS=str(tmp_path / "peers"))
    assert answer.returncode == 2
    assert "kvist: " in answer.stderr
    assert not (tmp_path / "peers").exists()


def test_a_peer_is_made_of_exact_versions_and_lives_where_it_is_told_to(root: Path) -> None:
    lines = (root / "bench" / "peers" / "vllm_cpu.txt").read_text(encoding="utf-8").splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+]*", package) for package in packages)
    assert sum(package.startswith("vllm-cpu==") for package in packages) == 1
    assert "KVIST_PEERS" in bash(str(root / "bench" / "peers" / "vllm_cpu"), "--help").stdout


def test_the_interpreter_that_was_asked_for_goes_first(root: Path) -> None:
    assert sourced(root, "find_python", PYTHON=sys.executable).stdout.strip() == sys.executable


def test_without_a_new_enough_interpreter_the_remedy_is_named(root: Path, tmp_path: Path) -> None:
    answer = sourced(root, f'PATH="{tmp_path}"; find_python', PYTHON=str(tmp_path / "python3.6"))
    assert answer.returncode == 3
    assert "needs Python 3.11 or newer" in answer.stderr
    assert "PYTHON=" in answer.stderr


def test_an_environment_that_was_made_elsewhere_is_not_sound(root: Path, tmp_path: Path) -> None:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "python").symlink_to(sys.executable)
    state = f'venv="{tmp_path}"; python="{binaries}/python"; venv_is_sound && echo sound || echo unsound'
    (binaries / "activate").write_text('VIRTUAL_ENV="elsewhere"\n', encoding="utf-8")
    assert sourced(root, state).stdout.strip() == "unsound"
    (binaries / "activate").write_text(f'VIRTUAL_ENV="{tmp_path}"\n', encoding="utf-8")
    assert sourced(root, state).stdout.strip() == "sound"


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_an_installation_is_repeated_only_when_what_it_is_made_from_changed(
    root: Path, tmp_path: Path, changed: str
) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("[project]\n", encoding="utf-8")
    given = f'root="{tmp_path}"; python="{sys.executable}"; fingerprint'
    first = sourced(root, given).stdout
    assert sourced(root, given).stdout == first != ""
    (tmp_path / changed).write_text("[project]\nname = 'x'\n", encoding="utf-8")
    assert sourced(root, given).stdout not in {first, ""}


def test_an_installation_takes_the_versions_that_are_tested(root: Path, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / "venv").mkdir()
    stub = tmp_path / "python"
    stub.write_text(f'#!/bin/bash\nif [ "$1" = - ]; then echo x; else printf "%s\\n" "$@" >"{tmp_path}/said"; fi\n')
    stub.chmod(0o755)
    answer = sourced(root, f'root="{tmp_path}"; venv="{tmp_path}/venv"; python="{stub}"; install dev')
    assert answer.returncode == 0, answer.stderr
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert said[:3] == ["-m", "pip", "install"]
    assert said[said.index("--constraint") + 1] == str(tmp_path / "constraints.txt")
    assert said[said.index("--editable") + 1] == f"{tmp_path}[dev]"


def test_a_program_that_is_there_is_not_installed(root: Path) -> None:
    assert sourced(root, "program bash no-such-package").stdout == ""


def test_a_missing_program_is_named_with_how_to_install_it(root: Path, tmp_path: Path) -> None:
    for user in ("0", "1000"):  # root without apt-get is as helpless as anybody else
        answer = sourced(root, f'id() {{ echo {user}; }}; PATH="{tmp_path}"; program redis-server redis-server')
        assert answer.returncode == 3
        assert "redis-server is missing" in answer.stderr
        assert "apt-get install redis-server" in answer.stderr


def test_root_has_a_missing_program_installed(root: Path, tmp_path: Path) -> None:
    apt = tmp_path / "apt-get"
    made = f'printf "#!/bin/bash\\n" >{tmp_path}/redis-server; /bin/chmod +x {tmp_path}/redis-server'
    apt.write_text(f'#!/bin/bash\nif [ "$1" = install ]; then {made}; fi\n', encoding="utf-8")
    apt.chmod(0o755)
    commands = f'PATH="{tmp_path}"; program redis-server some-package'
    as_root = sourced(root, f"id() {{ echo 0; }}; {commands}")
    assert (as_root.returncode, as_root.stdout.strip()) == (0, "Installing some-package")
    (tmp_path / "redis-server").unlink()
    assert sourced(root, f"id() {{ echo 1000; }}; {commands}").returncode == 3


def test_a_test_without_its_program_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="apt-get install redis-server"):
        binary("redis-server", str(tmp_path))
