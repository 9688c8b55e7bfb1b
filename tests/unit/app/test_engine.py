"""From a directory to an engine that answers: what is refused before anything is built, and what the budget says."""

import json
import queue
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvist.app.config import ServeConfig, read_config
from kvist.app.engine import Started, read_geometry, started_engine
from kvist.app.kv_memory import reserved_ahead
from kvist.app.locate import ModelFiles
from kvist.app.progress import Progress
from kvist.base.errors import CapacityError, ConfigError, ModelError
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.engine.messages import Admitted, Event, Finished, TokenDrawn
from kvist.engine.request import Request, Sampling
from tiny_directory import write_tiny_directory
from tiny_engine import generate, one_thread, subject

MIB = 2**20


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = write_tiny_directory(tmp_path_factory.mktemp("gemma3"), "gemma3")
    return ModelFiles(directory=folder, served_name="gemma3")


def settings(**fields: Any) -> ServeConfig:
    return read_config({"dtype": "float32", "kv_memory": "4MiB", "step_tokens": 64, "sequences_max": 4} | fields)


@contextmanager
def start(files: ModelFiles, **fields: Any) -> Iterator[tuple[Started, list[str]]]:
    """A started engine, and the stages it told of."""
    stages: list[Progress] = []
    with started_engine(files, read_geometry(files.directory), settings(**fields), stages.append) as started:
        yield started, [stage.stage for stage in stages]


def begin(opened: AbstractContextManager[object]) -> None:
    """Enters what is expected to refuse."""
    with opened:
        pass


def ask(started: Started, name: str, prompt: list[int], output: int) -> list[Event]:
    """Events of one greedy request, up to its end."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    request = Request(
        id=RequestId(name),
        tenant=TenantId("blue"),
        prompt=tuple(map(TokenId, prompt)),
        output_tokens_max=Tokens(output),
        sampling=Sampling(temperature=0),
        stop_tokens=frozenset(),
    )
    started.engine.submit(request, events.put)
    found = [events.get(timeout=60)]
    while isinstance(found[-1], Admitted | TokenDrawn):
        found.append(events.get(timeout=60))
    return found


def test_its_kv_lies_in_the_memory_that_was_touched_for_it(gemma: ModelFiles) -> None:
    config = settings()
    reserved = reserved_ahead(config)
    assert reserved is not None
    before = reserved.memory.nbytes
    with started_engine(gemma, read_geometry(gemma.directory), config, lambda _: None, reserved) as started:
        assert len(ask(started, "one", [5, 6, 7], 2)) == 4
        assert reserved.memory.nbytes == before
        assert reserved.memory.take(before - started.budget.kv + 1) is None
    with start(gemma) as (other, _):
        assert other.budget.kv == started.budget.kv


def test_a_started_engine_answers_as_transformers_does_and_from_its_cache_the_second_time(gemma: ModelFiles) -> None:
    prompt = list(range(3, 103))
    with start(gemma) as (started, stages):
        cold, warm = ask(started, "cold", prompt, 6), ask(started, "warm", prompt, 6)
    (expected,) = generate(subject("gemma3"), [prompt], 6)
    for events, cached in ((cold, 0), (warm, 96)):
        assert [event.token for event in events if isinstance(event, TokenDrawn)] == expected.tokens
        assert isinstance(events[-1], Finished)
        assert events[-1].tokens_cached == cached
    assert stages == ["Loading weights", "Compiling kernels", "Measuring a full step", "Allocating KV memory"]


def test_kernels_are_kept_in_private_and_not_keeping_them_is_no_failure(
    gemma: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVIST_CACHE", str(tmp_path / "cache"))
    with start(gemma):
        assert (tmp_path / "cache" / "kernels").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVIST_CACHE", str(tmp_path / "file"))
    with start(gemma) as (started, _):
        assert isinstance(ask(started, "a", [3, 4, 5], 1)[-1], Finished)


def test_the_budget_adds_up(gemma: ModelFiles) -> None:
    with start(gemma, model_tokens_max=256) as (started, _):
        statistics = started.engine.statistics()
    budget, geometry = started.budget, read_geometry(gemma.directory)
    assert budget.weights == 4 * sum(each.numel() for each in subject("gemma3").served.parameters())
    assert budget.kv == budget.plan.bytes_used <= 4 * MIB
    assert budget.kv_bytes_per_token == geometry.bytes_per_token("float32")
    assert budget.block_tokens == 16
    assert budget.limits == started.engine.limits
    assert budget.limits.model_tokens_max == 256
    assert budget.limits.longest_request_tokens == budget.plan.longest_request_tokens
    assert statistics.kv_bytes == budget.kv
    assert tuple(each.free for each in statistics.blocks) == budget.plan.blocks


def test_half_the_bytes_per_number_is_half_the_bytes_per_token(gemma: ModelFiles) -> None:
    with start(gemma) as (full, _), start(gemma, dtype="bfloat16") as (half, _):
        pass
    assert half.budget.kv_bytes_per_token * 2 == full.budget.kv_bytes_per_token
    assert half.budget.weights * 2 == full.budget.weights
    assert half.budget.plan.tokens_capacity > full.budget.plan.tokens_capacity


# What is refused, and when


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"model_tokens_max": 513}, r"--model-tokens-max 513 exceeds the model's 512 positions"),
        ({"prompt_tokens_max": 512}, r"--prompt-tokens-max"),
        ({"output_tokens_max": 600}, r"--output-tokens-max"),
        ({"step_tokens": 3}, r"--step-tokens or lower --sequences-max"),
    ],
)
def test_contradictions_are_told_before_weights_are_even_looked_at(
    fields: dict[str, Any], complaint: str, gemma: ModelFiles, tmp_path: Path
) -> None:
    stages: list[Progress] = []
    geometry = read_geometry(gemma.directory)
    with pytest.raises(ConfigError, match=complaint):
        begin(started_engine(replace(gemma, directory=tmp_path), geometry, settings(**fields), stages.append))
    assert stages == []


def test_a_device_that_is_not_there_is_told_before_weights_are_looked_at(gemma: ModelFiles, tmp_path: Path) -> None:
    geometry, nowhere = read_geometry(gemma.directory), replace(gemma, directory=tmp_path)
    with pytest.raises(ConfigError, match=r"device 'cuda' is not available here|cannot load the model"):
        begin(started_engine(nowhere, geometry, settings(device="cuda"), lambda _: None))


def test_a_pool_larger_than_the_machine_is_refused_with_the_flag(gemma: ModelFiles) -> None:
    with pytest.raises(CapacityError, match=r"1024\.0 TiB of KV memory do not fit: .* --kv-memory"):
        begin(start(gemma, kv_memory="1024TiB"))


def test_a_pool_of_less_than_a_block_is_refused(gemma: ModelFiles) -> None:
    with pytest.raises(CapacityError, match="do not hold one block"):
        begin(start(gemma, kv_memory="100B"))


def test_weights_that_are_not_the_configuration_s_are_refused(gemma: ModelFiles, tmp_path: Path) -> None:
    config = json.loads((gemma.directory / "config.json").read_text()) | {"vocab_size": 400}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((gemma.directory / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match="of another shape"):
        begin(start(replace(gemma, directory=tmp_path)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "cannot read"),
        (b"{", "cannot read"),
        (b"\xff\xfe\x00", "cannot read"),
        (b"[" * 100_000, "cannot read"),
        (b"[]", "config.json"),
        (b"null", "config.json"),
        (b"{}", "model_type"),
        (b'{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}', "supported are LlamaForCausalLM"),
        (b'{"model_type": "llama"}', "num_hidden_layers"),
    ],
    ids=lambda each: repr(each[:16]),
)
def test_a_configuration_that_is_none_is_refused(content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=complaint):
        read_geometry(tmp_path)


def test_no_configuration_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ModelError, match="cannot read"):
            read_geometry(folder)


def test_a_secret_that_is_none_is_told_before_weights_are_looked_at(gemma: ModelFiles, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("no secret")
    secret.chmod(0o600)
    stages: list[Progress] = []
    config = settings(tier=["dram=1MiB"], cache_secret_file=str(secret))
    with pytest.raises(ConfigError, match="hexadecimal"):
        begin(started_engine(gemma, read_geometry(gemma.directory), config, stages.append))
    assert stages == []


def test_who_shares_a_pool_is_told_which_secret_counts(
    gemma: ModelFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret"
    with caplog.at_level("INFO", logger="kvist.app.engine"):
        begin(start(gemma, tier=["pool=redis://127.0.0.1:1"], cache_secret_file=str(secret)))
    assert str(secret) in caplog.text
