"""What is reckoned with where the operator says nothing stays within the machine, and is enough to work with."""

import pytest

from fakes.vllm_objects import (
    Configured,
    FullAttentionSpec,
    SlidingWindowSpec,
    group,
    kv_cache_config,
    model_config,
    vllm_config,
)
from kvist.app.vllm_sizes import attention_width, default_staging, expected_prefill
from kvist.blocks.form import Form, Part, Plane
from kvist.connectors.vllm.reading_config import Engine, engine_of

MIB = 2**20


def form(payload: int) -> Form:
    part = Part(layers_first=0, layers=1, heads_first=0, heads=1)
    return Form(planes=(Plane("raw", "uint8", (1, 1, 1, payload)),), part=part)


def engine(config: object = None, model: str = "/nowhere") -> Engine:
    given = {"hidden_size": 576} if config is None else config
    groups = (group(FullAttentionSpec(), "a", "b"), group(SlidingWindowSpec(), "c"))
    return engine_of(
        "0.32.0",
        vllm_config(model_config=model_config(model=model, hf_config=Configured(given))),
        kv_cache_config(*groups),
    )


@pytest.mark.parametrize(
    ("payload", "free", "expected"),
    [
        (100_000, 2**40, 64 * MIB),  # a small model: the least that is of use
        (737_280, 2**40, 4 * 2048 * (737_280 + 512) // 16),  # four steps of SmolLM2
        (10**8, 2**50, 16 * (10**8 + 512)),  # a record is so large that staging has to be
        (5_000_000, 2**40, 1024 * MIB),  # a large model: bounded
        (100_000, 100 * MIB, 25 * MIB),  # a small machine: a quarter of it
        (1, 0, MIB),  # no machine at all
    ],
)
def test_staging_holds_some_steps_within_bounds(payload: int, free: int, expected: int) -> None:
    assert default_staging([form(payload)], 16, 2048, free) == expected


def test_only_layers_that_see_everything_count_for_attention() -> None:
    assert attention_width(engine()) == 2 * 576
    assert attention_width(engine({"text_config": {"hidden_size": 640}})) == 2 * 640


@pytest.mark.parametrize("config", [{}, {"hidden_size": "576"}, {"hidden_size": -1}, {"text_config": 5}])
def test_a_model_that_does_not_say_how_wide_it_is_has_a_width_too(config: object) -> None:
    assert attention_width(engine(config)) == 2 * 1024


def test_larger_weights_take_longer(tmp_path_factory: pytest.TempPathFactory) -> None:
    times = []
    for size in (1, 2):
        directory = tmp_path_factory.mktemp("model")
        (directory / "x.safetensors").write_bytes(bytes(size * 20_000_000))
        times.append(expected_prefill(engine(model=str(directory))).predict_s(0, 1000))
    times.append(expected_prefill(engine()).predict_s(0, 1000))  # not here: taken to have a thousand million
    assert times == sorted(times)
    assert times[0] > 0
