"""`kvist serve` as a process of its own over a tiny model: it starts, answers, drains, or says why it can not."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvist.engine.backends.tokenizer import load_tokenizer
from real.server import WAIT_S, RealServer
from tiny_directory import write_tiny_directory
from tiny_engine import generate, one_thread, subject

pytestmark = pytest.mark.slow

FLAGS = ("--dtype", "float32", "--kv-memory", "8MiB", "--step-tokens", "128", "--sequences-max", "8", "--threads", "1")
PROMPT = list(range(3, 103))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_directory(tmp_path_factory.mktemp("models") / "tiny-gemma3", "gemma3")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RealServer]:
    with RealServer("--model", str(folder), *FLAGS) as server:
        yield server


def test_it_is_ready_and_says_what_memory_goes_where(server: RealServer, folder: Path) -> None:
    assert server.get("/health").status_code == server.get("/ready").status_code == 200
    (card,) = server.get("/v1/models").json()["data"]
    assert (card["id"], card["root"], card["max_model_len"]) == ("tiny-gemma3", str(folder), 512)
    shown = server.output()
    for part in ("weights", "workspace of a full step, measured", "KV pool", "per token", "longest single request"):
        assert part in shown
    assert "Traceback" not in shown


def test_it_answers_as_transformers_does_cold_and_warm(server: RealServer, folder: Path) -> None:
    with one_thread():
        (expected,) = generate(subject("gemma3"), [PROMPT], 12)
    tokenizer = load_tokenizer(folder)
    ends = [index for index, token in enumerate(expected.tokens) if token in tokenizer.stop_tokens]
    text = tokenizer.decode(expected.tokens[: ends[0] if ends else None])
    before = server.metrics()
    cold, warm = (server.complete(PROMPT, max_tokens=12) for _ in range(2))
    after = server.metrics()
    for answer, cached in ((cold, 0), (warm, 96)):
        assert answer["choices"][0]["text"] == text
        assert answer["usage"]["prompt_tokens"] == 100
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    gained = {name: after[name] - before[name] for name in after if name in before}
    assert gained['kvist_tokens_total{source="cache"}'] == 96
    assert gained['kvist_tokens_total{source="computed"}'] == 104


def test_a_conversation_is_answered_from_its_own_blocks(server: RealServer) -> None:
    messages = [{"role": "user", "content": "Tell me about the river " * 3}]
    usages = []
    for _ in range(2):
        body = {"model": server.model, "messages": messages, "max_tokens": 16, "temperature": 0}
        answer = server.post("/v1/chat/completions", body).json()
        usages.append(answer["usage"])
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    assert usages[0]["prompt_tokens_details"]["cached_tokens"] == 0
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] >= usages[0]["prompt_tokens"] // 16 * 16


def test_metrics_name_what_the_operator_asks_for(server: RealServer) -> None:
    names = {name.split("{")[0] for name in server.metrics()}
    assert names >= {
        "kvist_time_to_first_token_seconds_count",
        "kvist_inter_token_latency_seconds_count",
        "kvist_tokens_total",
        "kvist_kv_blocks",
        "kvist_requests_running",
        "kvist_requests_waiting",
        "kvist_preemptions_total",
        "kvist_aborts_total",
        "kvist_out_of_memory_total",
    }


def test_a_signal_lets_running_requests_finish_and_ends_with_0(folder: Path) -> None:
    with RealServer("--model", str(folder), *FLAGS) as server:
        body = {"model": server.model, "prompt": PROMPT, "max_tokens": 300, "stream": True, "temperature": 1, "seed": 3}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=WAIT_S) as stream:
            lines = (line for line in stream.iter_lines() if line)
            next(lines)
            server.terminate()
            *_, last, done = lines
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] in {"stop", "length"}
        assert done == "data: [DONE]"
        assert server.process.wait(WAIT_S) == 0
        assert "Traceback" not in server.output()


def test_a_demonstration_that_can_not_be_given_leaves_the_server_serving(folder: Path) -> None:
    with RealServer("--model", str(folder), *FLAGS, "--demo", "--model-tokens-max", "64") as server:
        server.metrics_when(lambda _: "The demonstration failed: " in server.output())
        assert server.complete([5, 6, 7])["usage"]["prompt_tokens"] == 3
        server.terminate()
        assert server.process.wait(WAIT_S) == 0


def refusal(folder: Path | str, *flags: str) -> str:
    """The last line of a server that does not start; before it there is nothing but progress."""
    command = [
        str(Path(sys.executable).with_name("kvist")),
        "serve",
        "--port",
        "0",
        "--model",
        str(folder),
        *FLAGS,
        *flags,
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert run.returncode == 2, run
    assert run.stdout == ""
    *progress, last = run.stderr.splitlines()
    assert all("━" in line for line in progress), run.stderr
    assert last.startswith("kvist serve: ")
    return last


def test_a_pool_larger_than_the_machine_is_refused(folder: Path) -> None:
    said = refusal(folder, "--kv-memory", "64TiB")
    assert "64.0 TiB of KV memory do not fit" in said
    assert "give a smaller --kv-memory" in said


def test_weights_cut_short_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    content = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(content[: len(content) // 2])
    said = refusal(copy)
    assert f"{copy / 'model.safetensors'} is damaged or cut short" in said


def test_an_architecture_that_is_not_supported_is_refused_with_those_that_are(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "config.json").write_text('{"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}')
    said = refusal(copy)
    assert "'Mamba2ForCausalLM' is not supported; supported are LlamaForCausalLM (llama), MistralForCausalLM" in said


def test_a_model_that_is_none_is_refused_with_what_can_be_given() -> None:
    assert "there is no model 'nonsense'" in refusal("nonsense")
