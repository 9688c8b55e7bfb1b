"""A server's whole life within this process: start, tell where, answer, drain at a signal, and stop its engine."""

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvist.app.budget import Budget
from kvist.app.config import read_config
from kvist.app.private_socket import VARIABLE
from kvist.app.progress import silent
from kvist.app.serve import run_server
from kvist.base.errors import CapacityError, ConfigError, ModelError
from tiny_directory import write_tiny_directory
from tiny_engine import one_thread


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_directory(tmp_path_factory.mktemp("models") / "my model")


def run(model: Path | str, talk: Callable[[str], None], **fields: Any) -> list[tuple[str, Budget]]:
    """Serves until `talk`, which runs beside it with the server's address, is done; returns what it was told."""
    told: list[tuple[str, Budget]] = []
    failures: list[BaseException] = []

    def visit(url: str) -> None:
        try:
            talk(url)
        except BaseException as error:  # noqa: BLE001  whatever it was, the test wants to see it
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def ready(url: str, budget: Budget) -> None:
        told.append((url, budget))
        threading.Thread(target=visit, args=(url,)).start()

    settings = {"dtype": "float32", "kv_memory": "4MiB", "step_tokens": 64, "sequences_max": 4, "port": 0}
    run_server(read_config({"model": str(model)} | settings | fields), silent, ready)
    if failures:
        raise failures[0]
    return told


def engine_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kvist-engine")]


def test_a_server_tells_where_it_is_answers_and_leaves_nothing_running(folder: Path) -> None:
    answers: dict[str, Any] = {}

    def talk(url: str) -> None:
        answers["models"] = httpx.get(f"{url}/v1/models").json()
        body = {"model": "my model", "prompt": "Hello", "max_tokens": 3, "temperature": 0}
        answers["completion"] = httpx.post(f"{url}/v1/completions", json=body).json()
        answers["threads"] = engine_threads()

    ((url, budget),) = run(folder, talk)
    assert url.startswith("http://127.0.0.1:")
    assert budget.kv <= 4 * 2**20
    (card,) = answers["models"]["data"]
    assert (card["id"], card["root"], card["max_model_len"]) == ("my model", str(folder), 512)
    assert card["created"] > 1_700_000_000
    assert answers["completion"]["usage"]["completion_tokens"] >= 1
    assert answers["threads"] == ["kvist-engine"]
    assert engine_threads() == []


def test_a_model_may_be_served_under_another_name(folder: Path) -> None:
    names: list[str] = []

    def talk(url: str) -> None:
        names.extend(each["id"] for each in httpx.get(f"{url}/v1/models").json()["data"])

    run(folder, talk, served_model_name="org/other")
    assert names == ["org/other"]


def refused(model: Path | str, **fields: Any) -> Exception:
    def never(url: str) -> None:
        raise AssertionError(f"{url} was served")

    with pytest.raises((ConfigError, CapacityError)) as caught:
        run(model, never, **fields)
    assert engine_threads() == []
    return caught.value


def test_an_address_that_can_not_be_listened_on_ends_the_engine_too(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in str(refused(folder, port=port))
    assert "host" in str(refused(folder, host="a" * 64))


@pytest.mark.parametrize("model", ["nonsense", "/nowhere/at/all", "\x00", "x" * 4000, "~nobody/x"])
def test_a_model_that_is_none_is_refused(model: str) -> None:
    assert isinstance(refused(model), ModelError)


def test_weights_cut_short_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    content = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(content[: len(content) // 2])
    assert "damaged or cut short" in str(refused(copy))


def test_what_is_not_supported_is_refused_before_its_other_files_are_read(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "config.json").write_text('{"model_type": "nonsense"}')
    (copy / "tokenizer.json").write_text("{")
    assert "'nonsense' is not supported; supported are LlamaForCausalLM (llama)" in str(refused(copy))


def test_a_pool_larger_than_the_machine_is_refused(folder: Path) -> None:
    assert "1024.0 TiB of KV memory do not fit" in str(refused(folder, kv_memory="1024TiB"))


def test_a_place_for_operators_that_cannot_be_had_is_told_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "kvist").write_text("not a directory")
    stages: list[str] = []
    config = read_config({"model": "/nowhere/at/all", "port": 0, "tier": ["dram=1MiB"]})
    with pytest.raises(ConfigError, match="is not a directory"):
        run_server(config, lambda progress: stages.append(progress.stage), lambda url, budget: None)
    assert stages == []
