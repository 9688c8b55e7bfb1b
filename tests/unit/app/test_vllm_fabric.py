"""From what vLLM and its workers say to a side that works; what does not fit together is refused before it is used."""

import dataclasses
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.vllm_objects import (
    FullAttentionSpec,
    Tables,
    group,
    kv_cache_config,
    model_config,
    request,
    scheduler_output,
    vllm_config,
)
from fakes.vllm_side import fine_hashes
from kvist.app.connector_config import ConnectorConfig, read_connector_config
from kvist.app.vllm_fabric import Home, layers_of
from kvist.base.errors import ConfigError
from kvist.connectors.vllm.orders import StepOrders, StepReport
from kvist.connectors.vllm.reading import Foreign
from kvist.connectors.vllm.reading_config import Engine, engine_of
from kvist.connectors.vllm.shapes import GroupShape, WorkerShape

WORKER = WorkerShape(
    pipeline_rank=0,
    tensor_rank=0,
    machine="here",
    packing="cpu amx of vllm 0.32.0",
    replicas=1,
    groups=(GroupShape(layers=("layer.0",), heads=1, tokens=1, content=4096, dtype="uint8"),),
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with weights, and a cache directory for the secret."""
    monkeypatch.setenv("KVIST_CACHE", str(tmp_path / "cache"))
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "x.safetensors").write_bytes(b"weights")
    return directory


def engine(model: object) -> Engine:
    config = vllm_config(model_config=model_config(model=str(model)))
    return engine_of("0.32.0", config, kv_cache_config(group(FullAttentionSpec())))


def config(tier: str = "dram=8MiB", **changed: object) -> ConnectorConfig:
    """With little staging, and loads that are not compared with computing, which is quick for weights of some bytes."""
    given = read_connector_config({"kvist_tiers": [tier]})
    return given.model_copy(update={"staging_memory": 2**21, "load_when": "always", **changed})


@pytest.fixture
def home(model: Path) -> Iterator[Home]:
    """One that is open."""
    home = Home(config(), engine(model), lambda: b"start")
    home.open([WORKER], "here")
    yield home
    home.close()


def asked(home: Home, name: str, tokens: int = 80) -> tuple[Foreign, int]:
    """A request that has arrived, and how many tokens would be loaded for it."""
    theirs = request(
        name,
        block_hashes=fine_hashes("story", tokens),
        num_tokens=tokens,
        num_prompt_tokens=tokens,
        num_computed_tokens=0,
    )
    front = home.front()
    assert front is not None
    front.arrived(theirs)
    found, _ = front.matched(theirs, 0)
    assert found is not None
    return theirs, found


def stored(home: Home) -> StepOrders:
    """A request computes 80 tokens, and its blocks are copied out."""
    theirs, found = asked(home, "first")
    assert found == 0
    front = home.front()
    assert front is not None
    blocks = ([1, 2, 3, 4, 5],)
    front.allocated(theirs, SimpleNamespace(get_block_ids=lambda: blocks), 0)
    output = scheduler_output(num_scheduled_tokens={"first": 80}, kv_connector_block_state=Tables({"first": blocks}))
    orders = front.step(output)
    front.reported(StepReport(done={each.id: 1 for each in orders.stores}), ())
    front.finished(theirs, blocks)
    return orders


def orders_of(home: Home, name: str, computed: int) -> StepOrders:
    """What is ordered for a request of which vLLM has so many tokens, when it computes the others."""
    theirs, _ = asked(home, name)
    front = home.front()
    assert front is not None
    front.matched(theirs, computed)
    blocks = ([1, 2, 3, 4, 5],)
    front.allocated(theirs, SimpleNamespace(get_block_ids=lambda: blocks), 0)
    theirs.num_computed_tokens = computed
    scheduled = {name: 80 - computed}
    return front.step(scheduler_output(num_scheduled_tokens=scheduled, kv_connector_block_state=Tables({name: blocks})))


def settle(home: Home) -> None:
    """Waits for what the movers have to do."""
    fabric = home._open.fabric if home._open else None
    assert fabric is not None
    assert fabric.until(fabric._is_quiet, 10.0)


def test_what_is_stored_is_found_again(home: Home) -> None:
    orders = stored(home)
    assert len(orders.stores) == 5
    assert {handle.region for handle in orders.regions} == {"staging", "tier-dram"}
    assert orders.shapes[0].form.payload_bytes == 4096
    settle(home)
    assert asked(home, "second")[1] == 64


def test_after_a_reset_nothing_of_before_is_found(home: Home) -> None:
    stored(home)
    settle(home)
    home.reset()
    assert asked(home, "second")[1] == 0


def test_what_vllm_keeps_at_a_reset_is_not_stored_as_new(home: Home) -> None:
    pool = SimpleNamespace(cached_block_hash_to_block={})
    home.bind(pool)
    stored(home)
    pool.cached_block_hash_to_block["first"] = 1
    home.reset()
    assert not orders_of(home, "second", 32).stores, "32 of its tokens are of before"
    pool.cached_block_hash_to_block = {"second": 1}
    assert len(orders_of(home, "third", 32).stores) == 5, "vLLM has emptied its cache since"


def test_a_reset_before_the_first_request_counts_too(home: Home) -> None:
    home.reset()
    assert home.front_if_made is None
    stored(home)
    settle(home)
    assert asked(home, "second")[1] == 64


def test_tiers_are_known_by_kind(home: Home) -> None:
    assert home.tier_kinds() == {"dram": "dram"}


def test_workers_elsewhere_are_refused(model: Path) -> None:
    home = Home(config(), engine(model), lambda: b"start")
    with pytest.raises(ConfigError, match=r"elsewhere.*here.*one machine"):
        home.open([WORKER, dataclasses.replace(WORKER, tensor_rank=1, machine="elsewhere")], "here")


@pytest.mark.parametrize(
    "workers",
    [
        [],
        [WORKER, WORKER],
        [WORKER, dataclasses.replace(WORKER, tensor_rank=1, packing="cpu vec of vllm 0.32.0")],
        [dataclasses.replace(WORKER, groups=())],
    ],
)
def test_workers_that_do_not_fit_together_are_refused(model: Path, workers: list[WorkerShape]) -> None:
    home = Home(config(), engine(model), lambda: b"start")
    with pytest.raises(ConfigError):
        home.open(workers, "here")


def test_weights_that_are_not_here_need_a_name(model: Path) -> None:
    absent = engine(model / "elsewhere")
    with pytest.raises(ConfigError, match="weights_revision"):
        Home(config(), absent, lambda: b"start").open([WORKER], "here")
    home = Home(config(weights_revision="2026-11"), absent, lambda: b"start")
    home.open([WORKER], "here")
    home.close()


def test_an_engine_that_never_told_of_workers_goes_on_without(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(config(), engine(model), lambda: b"start")
    with caplog.at_level(logging.ERROR):
        assert home.front() is None
        assert home.front() is None
    assert len(caplog.records) == 1
    home.reset()
    home.close()


def test_so_does_one_whose_hashes_start_nowhere(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(config(), engine(model), lambda: SimpleNamespace().NONE_HASH)  # type: ignore[no-any-return]  what vLLM may lack
    home.open([WORKER], "here")
    assert home.front() is None
    assert "NONE_HASH" in caplog.text
    home.close()


@pytest.mark.parametrize("error", [ZeroDivisionError("of nobody's"), TypeError("NONE_HASH is an int")])
def test_no_error_of_the_start_reaches_vllms_scheduler(
    model: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def failing() -> bytes:
        raise error

    home = Home(config(), engine(model), failing)
    home.open([WORKER], "here")
    assert home.figures() is None
    assert home.front() is None
    assert home.front() is None
    assert [str(error) in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [True]
    figures = home.figures()
    assert figures is not None
    assert [(each.name, each.value) for each in figures] == [("kvist_connector_detached", 1)]
    home.close()


def test_an_engine_that_wakes_up_goes_on_with_what_it_had(model: Path, tmp_path: Path) -> None:
    # A directory that another may not open as well; vLLM tells of its workers again when it has slept.
    home = Home(config(f"disk={tmp_path / 'disk'}:64MiB"), engine(model), lambda: b"start")
    home.open([WORKER], "here")
    stored(home)
    settle(home)
    home.open([WORKER], "here")
    assert asked(home, "second")[1] == 64
    home.close()


def test_one_that_wakes_up_with_other_workers_goes_on_without(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    stored(home)
    settle(home)
    home.open([WORKER, dataclasses.replace(WORKER, tensor_rank=1)], "here")
    assert asked(home, "second")[1] == 0
    figures = home.figures()
    assert figures is not None
    assert {each.name: each.value for each in figures} == {"kvist_connector_detached": 1}
    assert "others than at the start" in caplog.text


def test_so_does_one_that_had_no_request_yet(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    home.open([dataclasses.replace(WORKER, packing="cpu vec of vllm 0.32.0")], "here")
    assert home.front() is None
    assert "others than at the start" in caplog.text


def test_hashes_that_start_differently_do_not_meet(model: Path, tmp_path: Path) -> None:
    found = []
    for start in (b"start", b"start", b"other"):
        home = Home(config(f"disk={tmp_path / 'disk'}:64MiB"), engine(model), partial(bytes, start))
        home.open([WORKER], "here")
        tokens = asked(home, "again")[1]
        found.append(tokens)
        if not tokens:
            stored(home)
            settle(home)
        home.close()
    assert found == [0, 64, 0]


def test_layers_are_in_the_order_of_a_record() -> None:
    def worker(stage: int, rank: int, *layers: str) -> WorkerShape:
        shape = dataclasses.replace(WORKER.groups[0], layers=layers)
        return dataclasses.replace(WORKER, pipeline_rank=stage, tensor_rank=rank, groups=(shape,))

    workers = [worker(1, 0, "c"), worker(0, 1, "a", "b"), worker(0, 0, "a", "b"), worker(1, 1, "c")]
    assert layers_of(workers, 1) == (("a", "b", "c"),)
