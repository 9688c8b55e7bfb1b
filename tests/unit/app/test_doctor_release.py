"""Whether vLLM can be used is asked in another process, whatever happens there."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvist.app.doctor_findings import Finding
from kvist.app.doctor_release import Said, is_vllm_there, release_findings, run_command
from kvist.connectors.vllm.versions import SUPPORTED


def found_with(vllm: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Finding:
    """What is found where a package vllm has these files."""
    for name, text in vllm.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.fspath(folder))
    (found,) = release_findings(run_command, is_there=True)
    return found


BASE = "distributed/kv_transfer/kv_connector/v1/base.py"
EMPTY = {
    "distributed/__init__.py": "",
    "distributed/kv_transfer/__init__.py": "",
    "distributed/kv_transfer/kv_connector/__init__.py": "",
    "distributed/kv_transfer/kv_connector/v1/__init__.py": "",
    BASE: "class KVConnectorBase_V1: ...\nclass SupportsHMA: ...\n",
}


def test_a_release_that_nobody_knows_is_refused_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = "print('INFO: starting')\n__version__ = '0.11.2'\n"
    found = found_with({"__init__.py": noisy} | EMPTY, tmp_path, monkeypatch)
    assert found.status == "problem"
    assert "0.11.2" in found.text
    assert all(release in found.text for release in SUPPORTED)


def test_a_known_release_with_other_methods_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = f"{max(SUPPORTED)}.1"
    found = found_with({"__init__.py": f"__version__ = '{version}'\n"} | EMPTY, tmp_path, monkeypatch)
    assert found.status == "problem"
    assert "get_num_new_matched_tokens" in found.text


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ("raise RuntimeError('operator torchvision::nms does not exist')", "torchvision::nms"),
        ("import no_such_package", "no_such_package"),
        ("def (", "SyntaxError"),
        ("import os; os._exit(3)", "nothing"),
        ("import os; os._exit(0)", "nothing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "nothing"),
    ],
)
def test_whatever_importing_does_is_a_finding(
    init: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_with({"__init__.py": init}, tmp_path, monkeypatch)
    assert found.status == "problem"
    assert said in found.text


def test_an_import_that_never_ends_is_ended() -> None:
    assert run_command([sys.executable, "-c", "import threading; threading.Event().wait()"], 0.2).status is None

    def endless(command: Sequence[str], seconds: float) -> Said:
        return Said(None, ())

    assert [each.status for each in release_findings(endless, is_there=True)] == ["problem"]


def test_a_release_that_fits_is_fine_and_other_output_does_not_matter() -> None:
    def fits(command: Sequence[str], seconds: float) -> Said:
        return Said(0, ("INFO", 'kvist-doctor:["0.32.0+cpu", ""]', "WARNING"))

    (found,) = release_findings(fits, is_there=True)
    assert (found.status, "0.32.0+cpu" in found.text) == ("ok", True)


def test_without_vllm_that_is_said_and_nothing_is_run() -> None:
    def never(command: Sequence[str], seconds: float) -> Said:
        raise AssertionError(f"{command} must not run")

    (found,) = release_findings(never, is_there=False)
    assert (found.status, sys.executable in found.text) == ("note", True)
    assert not is_vllm_there()
