"""What changes buy, and which are just enough."""

from dataclasses import replace

import pytest

from kvist.base.units import Bytes, Tokens
from kvist.planner.changes import Change, Knob, changes, narrower, remedies
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.plan import plan
from kvist.planner.sharding import Parallel
from planned_models import DEEPSEEK_V3, GEMMA3_270M, GIB, LLAMA_8B, LLAMA_70B, SMOLLM2, machine_of

BF16 = KvFormat(kv=kv_dtype("bfloat16"))
TIGHT = Deployment(
    model=LLAMA_70B,
    machine=machine_of(139.8),
    form=BF16,
    context_tokens=Tokens(131_072),
    concurrency=4,
    parallel=Parallel(tensor=2),
)


def by_knob(found: tuple[Change, ...]) -> dict[Knob, Change]:
    return {each.knob: each for each in found}


def test_each_change_is_planned() -> None:
    found = changes(TIGHT)
    assert [(each.knob, each.value) for each in found] == [
        ("kv_dtype", "int8_per_token_head"),
        ("kv_dtype", "fp8"),
        ("kv_dtype", "nvfp4"),
        ("kv_dtype", "int4_per_token_head"),
        ("tensor", 4),
        ("tensor", 8),
        ("utilisation", 0.95),
        ("context", 65_536),
    ]
    assert all(each.plan == plan(each.deployment) for each in found)
    assert all(each.plan.concurrent_requests > plan(TIGHT).concurrent_requests for each in found)


def test_what_is_at_its_end_is_not_turned_further() -> None:
    end = replace(
        TIGHT, model=SMOLLM2, parallel=Parallel(tensor=9), context_tokens=Tokens(1), utilisation=0.95, rules="vllm"
    )
    assert {each.knob for each in changes(end)} == {"kv_dtype"}
    assert {each.knob for each in changes(replace(end, rules="kvist", parallel=Parallel()))} == set()


def test_narrower_dtypes_are_those_that_vllm_can_read_in_such_layers() -> None:
    assert [dtype.name for dtype in narrower(replace(TIGHT, model=DEEPSEEK_V3))] == ["fp8"]
    of_64 = [dtype.name for dtype in narrower(replace(TIGHT, model=SMOLLM2, context_tokens=Tokens(8192)))]
    assert of_64 == ["int8_per_token_head", "fp8", "int4_per_token_head"]
    assert narrower(replace(TIGHT, form=KvFormat(kv=kv_dtype("int4_per_token_head")))) == ()


def test_what_fits_needs_no_remedy() -> None:
    assert remedies(replace(TIGHT, concurrency=1)) == ()


@pytest.mark.parametrize(
    "deployment",
    [
        TIGHT,
        replace(TIGHT, kv_bytes=Bytes(30 * GIB)),
        replace(TIGHT, model=LLAMA_8B, machine=machine_of(12), parallel=Parallel(), context_tokens=Tokens(4096)),
        replace(TIGHT, model=GEMMA3_270M, machine=machine_of(1.5), parallel=Parallel(), context_tokens=Tokens(32_768)),
        replace(
            TIGHT,
            model=GEMMA3_270M,
            machine=machine_of(1, link=None),
            parallel=Parallel(),
            rules="kvist",
            context_tokens=Tokens(32_768),
            concurrency=64,
        ),
    ],
    ids=["long requests", "bytes given", "weights too large", "small", "Kvist on a CPU"],
)
def test_every_remedy_fits_and_is_the_least(deployment: Deployment) -> None:
    assert not plan(deployment).fits
    found = by_knob(remedies(deployment))
    assert found["memory"].plan.fits
    for each in found.values():
        assert each.plan.fits
        assert each.plan == plan(each.deployment)
        assert not plan(nearly(each)).fits


def nearly(change: Change) -> Deployment:
    """The same change, a little less of it."""
    deployment = change.deployment
    parallel, machine, kv_bytes = deployment.parallel, deployment.machine, deployment.kv_bytes
    fewer = None if kv_bytes is None else Bytes(kv_bytes - 1)
    less: dict[Knob, dict[str, object]] = {
        "kv_dtype": {"form": BF16},
        "tensor": {"parallel": replace(parallel, tensor=max(1, parallel.tensor // 2))},
        "pipeline": {"parallel": replace(parallel, pipeline=max(1, parallel.pipeline - 1))},
        "utilisation": {"utilisation": round(deployment.utilisation - 0.01, 2)},
        "kv_bytes": {"kv_bytes": fewer},
        "context": {"context_tokens": Tokens(deployment.context_tokens + 1)},
        "concurrency": {"concurrency": deployment.concurrency + 1},
        "memory": {"machine": replace(machine, bytes_total=Bytes(machine.bytes_total - 2)), "kv_bytes": fewer},
    }
    return replace(deployment, **less[change.knob])  # type: ignore[arg-type]  # each is what the field holds


def test_the_remedies_of_long_requests() -> None:
    found = by_knob(remedies(TIGHT))
    assert {knob: each.value for knob, each in found.items() if knob in ("kv_dtype", "tensor", "pipeline")} == {
        "kv_dtype": "int8_per_token_head",
        "tensor": 4,
        "pipeline": 2,
    }
    assert found["concurrency"].value == plan(TIGHT).concurrent_requests == 2
    assert "utilisation" not in found


def test_the_least_percent_more_is_found() -> None:
    asked = replace(TIGHT, concurrency=3, utilisation=0.9)
    per_percent = TIGHT.machine.bytes_total // 100
    missing = plan(asked).missing_bytes_per_rank
    found = by_knob(remedies(asked))["utilisation"]
    assert found.value == pytest.approx(0.9 + -(-missing // per_percent) / 100)
    assert found.value == 0.91
