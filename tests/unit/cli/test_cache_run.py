"""What `kvist cache` sends, asks before, prints and exits with."""

import argparse
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fakes.operated import TEXT, Operator, operator, served
from fakes.serving import SETTINGS
from kvist.app.private_socket import VARIABLE
from kvist.base.errors import ConfigError
from kvist.cli.cache_run import body_of, read_prompt
from kvist.cli.main import build_parser, main
from kvist.server.administration import create_administration

PORT = "8123"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    """Verbs behind a socket where the command looks for one."""
    with TemporaryDirectory(prefix="kvist-") as folder, operator() as there:
        monkeypatch.setenv(VARIABLE, folder)
        monkeypatch.setenv("COLUMNS", "200")
        with served(create_administration(there.verbs, SETTINGS), int(PORT), os.environ):
            yield there


def parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["cache", *arguments])


def test_only_what_was_given_is_sent() -> None:
    assert body_of(parsed("tiers")) == {}
    assert body_of(parsed("list")) == {}
    assert body_of(parsed("list", "--tier", "disk", "--limit", "7", "--tenant", "blue")) == {
        "tier": "disk",
        "limit": 7,
        "tenant": "blue",
    }
    assert body_of(parsed("show", "abcdef01")) == {"hash": "abcdef01"}
    assert body_of(parsed("purge", "a", "b", "--default-tenant")) == {"hashes": ["a", "b"], "default_tenant": True}
    assert body_of(parsed("purge", "--all", "--yes", "--timeout", "3")) == {"all": True, "timeout_s": 3.0}
    assert body_of(parsed("move", "--from", "dram", "--to", "disk", "--all")) == {
        "source": "dram",
        "target": "disk",
        "all": True,
    }
    assert body_of(parsed("prefetch", "--to", "dram", "--tenant", "x")) == {"target": "dram", "tenant": "x"}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["list", "--tenant", "a", "--default-tenant"],
        ["move", "--to", "disk", "--all"],
        ["copy", "--from", "disk", "--all"],
        ["prefetch", "--all"],
        ["show"],
        ["explain"],
        ["list", "--limit", "x"],
        ["--port", "x", "tiers"],
        ["--port", "1", "--socket", "y", "tiers"],
        ["--tier", "disk=x:1GiB", "--port", "1", "tiers"],
        ["destroy"],
    ],
    ids=" ".join,
)
def test_flags_that_make_no_sense_are_refused_with_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*arguments)
    assert caught.value.code == 2
    assert "usage: kvist cache" in capsys.readouterr().err


def test_a_prompt_is_read_as_text_or_as_messages(tmp_path: Path) -> None:
    path = tmp_path / "prompt"
    path.write_text("Grüß Gott\n")
    assert read_prompt(str(path), is_chat=False) == {"prompt": "Grüß Gott\n"}
    messages = [{"role": "user", "content": "Hi"}]
    for content in (messages, {"model": "m", "messages": messages}):
        path.write_text(json.dumps(content))
        assert read_prompt(str(path), is_chat=True) == {"messages": messages}


@pytest.mark.parametrize(
    ("content", "is_chat"),
    [
        (b"\xff", False),
        (b"x" * (7 * 2**20 + 1), False),
        (b"no JSON", True),
        (b"7", True),
        (b'{"prompt": "x"}', True),
        (b"[" * 100_000, True),
    ],
    ids=["not UTF-8", "huge", "no JSON", "a number", "no messages", "deep"],
)
def test_a_file_that_is_no_prompt_is_refused_by_name(tmp_path: Path, content: bytes, is_chat: bool) -> None:
    path = tmp_path / "prompt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"--prompt {path}"):
        read_prompt(str(path), is_chat=is_chat)


@pytest.mark.parametrize("path", ["no/such/file", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused_by_name(path: str) -> None:
    with pytest.raises(ConfigError, match="--prompt"):
        read_prompt(path, is_chat=False)


def test_chat_without_a_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="--chat"):
        body_of(parsed("purge", "--chat", "--all"))


def test_tables_name_what_there_is(there: Operator, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hashes = there.store(TEXT)
    (tmp_path / "prompt").write_text(TEXT)
    assert main(["cache", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(each[:16] in shown for each in hashes)
    assert main(["cache", "copy", "--from", "pool", "--to", "dram", "--all"]) == 0
    assert str(len(hashes)) in capsys.readouterr().out
    assert main(["cache", "show", hashes[0][:10]]) == 0
    assert {"dram", "pool"} <= set(capsys.readouterr().out.split())
    assert main(["cache", "tiers"]) == 0
    assert "breaker" in capsys.readouterr().out
    assert main(["cache", "--port", PORT, "explain", "--prompt", str(tmp_path / "prompt")]) == 0
    shown = capsys.readouterr().out
    assert "loading [bold]pool[/] takes 1 ms" in shown
    assert "chosen" in shown


def test_json_is_what_the_server_answers(there: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    hashes = there.store(TEXT)
    assert main(["cache", "list", "--json"]) == 0
    assert [block["hash"] for block in json.loads(capsys.readouterr().out)["blocks"]] == hashes
    assert main(["cache", "pin", hashes[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tiers"][1]["done"] == 1


def test_the_prompt_may_come_from_standard_input(there: Operator, tmp_path: Path) -> None:
    hashes = there.store(TEXT, "blue")
    other = there.store(TEXT)
    (tmp_path / "prompt").write_text(TEXT)
    before = sys.stdin
    with (tmp_path / "prompt").open() as file:
        sys.stdin = file
        try:
            assert main(["cache", "purge", "--prompt", "-", "--tenant", "blue"]) == 0
        finally:
            sys.stdin = before
    assert there.hashes() == sorted(other)
    assert hashes != other


def test_everything_is_purged_only_when_somebody_says_yes(there: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    hashes = there.store(TEXT)
    before = sys.stdin
    try:
        sys.stdin = io.StringIO("yes\n")  # no terminal
        assert main(["cache", "purge", "--all"]) == 2
    finally:
        sys.stdin = before
    assert "add --yes" in capsys.readouterr().err
    assert there.hashes() == sorted(hashes)
    assert main(["cache", "purge", "--all", "--yes"]) == 0
    assert there.hashes() == []


def test_what_was_not_done_is_status_1(there: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = there.store(TEXT)
    assert main(["cache", "purge", first, "00" * 32]) == 1
    assert "No tier has 0000" in capsys.readouterr().out
    ((address, (record, entry)), *_) = there.trial.pool._rows.items()
    there.trial.pool._rows[address] = (bytes(len(record)), entry)
    assert main(["cache", "copy", "--from", "pool", "--to", "dram", "--all"]) == 1
    there.trial.pool._rows[address] = (bytes(len(record)), entry)
    assert main(["cache", "verify", "--all"]) == 1
    assert main(["cache", "verify", "--all"]) == 0
    there.trial.pool.close()
    assert main(["cache", "list"]) == 1
    assert "it is closed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["purge"], "Nothing is chosen"),
        (["purge", "xyz"], "hexadecimal digits"),
        (["list", "--limit", "0"], "'limit'"),
        (["list", "--tier", "cellar"], "no tier 'cellar'"),
        (["move", "--all", "--from", "pool", "--to", "pool"], "name two tiers"),
        (["show", "ab" * 32], "No tier has a block"),
        (["pin", "--all", "--timeout", "nan"], "--timeout nan"),
        (["pin", "--all", "--timeout", "-1"], "--timeout -1"),
        (["pin", "--all", "--timeout", "1e300"], "--timeout 1e+300"),
        (["pin", "--tenant", "\udcff"], "no UTF-8 text"),
        (["pin", "--tenant", ""], "'tenant'"),
    ],
)
def test_what_cannot_work_is_one_line_and_status_2(
    there: Operator, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvist cache: ")
    assert complaint in line


def test_no_server_is_status_2_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert main(["cache", "tiers"]) == 2
    assert "kvist serve --tier" in capsys.readouterr().err
