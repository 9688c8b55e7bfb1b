"""A prompt explained over a real engine and its tiers: what it would begin with, and that asking changes nothing."""

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvist.app.config import read_config
from kvist.app.engine import Started, read_geometry, started_engine
from kvist.app.explain import explained_by
from kvist.app.locate import ModelFiles
from kvist.base.errors import KvistError
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.engine.messages import Event, Finished
from kvist.engine.request import Request, Sampling
from tiny_directory import write_tiny_directory
from tiny_engine import one_thread

PROMPT = list(range(3, 103))
CACHED = 96


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = write_tiny_directory(tmp_path_factory.mktemp("models") / "llama", "llama")
    files = ModelFiles(directory=folder, served_name="llama")
    # Room for one prompt in the engine's own memory, so that the first is in the tier alone once the second has run.
    secret = tmp_path_factory.mktemp("secret") / "secret"
    small = {"kv_memory": "257KiB", "model_tokens_max": 128, "step_tokens": 64, "sequences_max": 1, "threads": 1}
    tiers = {"tier": ["dram=1MiB"], "load_when": "always", "cache_secret_file": str(secret)}
    config = read_config({"dtype": "float32"} | small | tiers)
    with started_engine(files, read_geometry(folder), config, lambda _: None) as started:
        yield started


def ask(started: Started, name: str, prompt: list[int]) -> None:
    """Computes a prompt, and waits until it is stored."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    request = Request(
        id=RequestId(name),
        tenant=TenantId("blue"),
        prompt=tuple(map(TokenId, prompt)),
        output_tokens_max=Tokens(1),
        sampling=Sampling(temperature=0),
        stop_tokens=frozenset(),
    )
    started.engine.submit(request, events.put)
    while not isinstance(events.get(timeout=60), Finished):
        pass
    fabric = started.fabric
    assert fabric is not None
    started.engine.standing([1], TenantId("blue")).result(60)  # the step after which all was offered is over
    while fabric.statistics().stores_running:
        fabric.wait(60)


def test_what_is_asked_about_comes_from_where_it_is(started: Started) -> None:
    assert started.fabric is not None
    explain = explained_by(started.engine, started.fabric)
    nothing = explain(PROMPT, TenantId("blue"), 60)
    assert (list(nothing.sources), nothing.decision is not None) == ([], True)
    ask(started, "first", PROMPT)
    own = explain(PROMPT, TenantId("blue"), 60)
    assert [(source.tier, source.tokens) for source in own.sources] == [("G1", CACHED)]
    ask(started, "second", PROMPT[::-1])
    counted = started.fabric.statistics()
    below = explain(PROMPT, TenantId("blue"), 60)
    assert sum(source.tokens for source in below.sources) == CACHED
    assert "dram" in {source.tier for source in below.sources}
    assert below.decision is not None
    assert below.prefix_end == below.decision.reason
    assert list(explain(PROMPT, TenantId("red"), 60).sources) == []
    assert started.fabric.statistics() == counted, "asking changed something"
    started.fabric.audit()


def test_an_engine_that_was_stopped_says_so(tmp_path: Path) -> None:
    folder = write_tiny_directory(tmp_path / "llama", "llama")
    files = ModelFiles(directory=folder, served_name="llama")
    flags = {"dtype": "float32", "kv_memory": "1MiB", "step_tokens": 64, "sequences_max": 1, "threads": 1}
    config = read_config(flags | {"tier": ["dram=1MiB"], "cache_secret_file": str(tmp_path / "secret")})
    with started_engine(files, read_geometry(folder), config, lambda _: None) as started:
        assert started.fabric is not None
        explain = explained_by(started.engine, started.fabric)
        started.engine.stop()
        with pytest.raises(KvistError, match="stopped"):
            explain(PROMPT, TenantId("blue"), 60)
