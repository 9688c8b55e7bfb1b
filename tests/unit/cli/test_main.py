"""The command as people type it: quick, light, and clear about what went wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kvist
from kvist.cli.main import build_parser, main

KVIST = (sys.executable, "-m", "kvist.cli.main")
HEAVY = {"torch", "transformers", "fastapi", "uvicorn", "pydantic", "numpy", "httpx", "safetensors", "tokenizers"}


def kvist_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KVIST, *arguments], capture_output=True, text=True, check=False)


def fastest_s(*command: str) -> float:
    """The best of several runs; the others waited for something else."""
    times = []
    for _ in range(7):
        begun_s = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append(time.perf_counter() - begun_s)
    return min(times)


def test_help_is_there_at_once() -> None:
    bare_s = fastest_s(sys.executable, "-c", "pass")
    # 0.3 s is the promise; on a machine where Python alone takes long, some times that.
    assert fastest_s(*KVIST, "--help") < max(0.3, 8 * bare_s)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["serve", "--help"], ["bench", "--help"], ["serve", "-x"]]
)
def test_help_and_mistakes_load_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom kvist.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "import json\nprint(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert HEAVY.isdisjoint(json.loads(run.stderr.splitlines()[-1]))


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"kvist {kvist.__version__}\n"


def test_help_names_every_command() -> None:
    shown = build_parser().format_help()
    for command in ("plan", "serve", "fetch", "bench"):
        assert command in shown


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        [""],
        ["--nonsense"],
        ["serve", "--nonsense"],
        ["serve", "surplus"],
        ["serve", "--port"],
        ["serve", "--overc", "2"],
        ["serve", "--demo=yes"],
        ["fetch", "--accept", "smollm2"],
        ["bench", "ttft", "--ur", "http://127.0.0.1:1"],
        ["--vers"],
    ],
    ids=" ".join,
)
def test_what_is_no_command_is_refused_with_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("usage: kvist")
    assert "error:" in said.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve", "--port", "99999"], "--port '99999'"),
        (["serve", "--kv-memory", "lots"], "--kv-memory 'lots' is not a size"),
        (["serve", "--kv-memory", "1GiB", "--kv-memory-fraction", "0.5"], "give one of them"),
        (["serve", "--dtype", "int4"], "--dtype 'int4'"),
        (["serve", "--model", ""], "--model ''"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_settings_that_can_not_work_are_one_line_and_status_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("kvist serve: ")
    assert complaint in line
    assert said.out == ""


def test_the_command_s_status_is_the_process_s() -> None:
    run = kvist_command("serve", "--port", "x")
    assert (run.returncode, run.stdout) == (2, "")
    assert "Traceback" not in run.stderr
    assert kvist_command("--version").returncode == 0


def test_a_failure_of_the_network_is_status_1() -> None:
    run = kvist_command("bench", "ttft", "--url", "http://127.0.0.1:9")
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    assert run.stderr.splitlines()[-1].startswith("kvist bench: ")


def test_an_interrupt_is_no_accident(tmp_path: Path) -> None:
    # Whoever reads a pipe waits for its writer: so the command is known to be at work when it is interrupted.
    os.mkfifo(tmp_path / "config.json")
    command = [*KVIST, "serve", "--model", str(tmp_path)]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving,
        (tmp_path / "config.json").open("w"),
    ):
        serving.send_signal(signal.SIGINT)
        _, said = serving.communicate(timeout=60)
    assert serving.returncode == 130
    assert said.splitlines()[-1] == "kvist serve: interrupted"
    assert "Traceback" not in said
