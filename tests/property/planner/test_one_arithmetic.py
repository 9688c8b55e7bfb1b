"""What starts the engine, what admits requests, what is stored and what is planned are one arithmetic."""

import ast
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvist.app.budget import kv_bytes, kv_limits
from kvist.app.config import ServeConfig, read_config
from kvist.app.plan import Ask, GpuAsk, answered
from kvist.base.units import Bytes, Tokens
from kvist.engine import admission
from kvist.engine.admission import AdmissionRules
from kvist.engine.backends.device import torch_dtype
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.form import form_of
from kvist.geometry.config import geometry_from_config
from kvist.geometry.groups import Dtype, KvGroup
from kvist.geometry.layers import AttentionLayer
from kvist.geometry.published import model_layers
from kvist.planner import budget
from kvist.planner.budget import KvLimits, plan_groups, plan_kv
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.kvist import kvist_groups
from kvist.planner.plan import plan
from kvist.planner.useful import bytes_per_token
from planned_models import machine_of
from tiny_families import as_file
from tiny_models import tiny_configs

SOURCES = Path(__file__).parents[3] / "src" / "kvist"
ONE_PLACE = SOURCES / "geometry" / "groups.py"
MIB = 2**20

groups = st.lists(
    st.builds(
        KvGroup,
        layers=st.integers(1, 4).map(lambda count: tuple(range(count))),
        kv_heads=st.integers(1, 4),
        head_dim_k=st.integers(1, 24),
        head_dim_v=st.integers(1, 24),
        window=st.none() | st.integers(1, 200).map(Tokens),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda group: group.window,
).map(lambda found: tuple(sorted(found, key=lambda group: (group.window is not None, -(group.window or 0)))))
dtypes = st.sampled_from(get_args(Dtype))


def layers_of(found: tuple[KvGroup, ...]) -> list[AttentionLayer]:
    """The groups' layers, one by one."""
    return [
        AttentionLayer(
            kv_heads=group.kv_heads, head_dim_k=group.head_dim_k, head_dim_v=group.head_dim_v, window=group.window
        )
        for group in found
        for _ in group.layers
    ]


@given(found=groups, dtype=dtypes, block_tokens=st.integers(1, 32))
def test_a_token_takes_the_same_in_plans_tensors_and_records(
    found: tuple[KvGroup, ...], dtype: Dtype, block_tokens: int
) -> None:
    by_geometry = [group.bytes_per_token(dtype) for group in found]
    assert sum(by_geometry) == bytes_per_token(layers_of(found), KvFormat(kv=kv_dtype(dtype)))
    records = [form_of(group, dtype, block_tokens).payload_bytes for group in found]
    assert records == [each * block_tokens for each in by_geometry]


@given(found=groups, dtype=dtypes, block_tokens=st.integers(1, 16), more=st.integers(0, 2**18))
def test_tensors_take_the_bytes_that_are_planned(
    found: tuple[KvGroup, ...], dtype: Dtype, block_tokens: int, more: int
) -> None:
    limits = limits_of(dtype, block_tokens=block_tokens)
    planned = plan_groups(found, sum(limits.block_bytes(group) for group in found) + more, limits)
    device = torch.device("cpu")
    store = KvStore(found, planned.blocks, block_tokens=block_tokens, dtype=torch_dtype(dtype), device=device)
    assert store.nbytes == planned.bytes_used


@given(found=groups, tokens=st.integers(1, 2000), step=st.integers(1, 300), block_tokens=st.integers(1, 32))
def test_admission_asks_for_what_start_up_promised(
    found: tuple[KvGroup, ...], tokens: int, step: int, block_tokens: int
) -> None:
    rules = AdmissionRules(groups=found, block_tokens=block_tokens, step_tokens=step, overcommit=1.0)
    limits = limits_of("bfloat16", block_tokens=block_tokens, step_tokens=step)
    assert rules.peak(tokens, step) == [limits.peak(group, tokens) for group in found]
    assert admission.blocks_held_peak is budget.blocks_held_peak


@pytest.mark.parametrize("name", tiny_configs())
@pytest.mark.parametrize("size", [MIB, 3 * MIB, 20 * MIB])
def test_the_engine_starts_with_the_blocks_that_are_planned(name: str, size: int) -> None:
    file = as_file(tiny_configs()[name])
    config = read_config({"sequences_max": "7", "step_tokens": "64", "dtype": "float32"})
    geometry, model = geometry_from_config(file), model_layers(file)
    started = plan_kv(geometry, size, kv_limits(geometry, config))
    planned = plan(
        Deployment(
            model=model,
            machine=machine_of(1.0, link=None),
            form=KvFormat(kv=kv_dtype("float32")),
            rules="kvist",
            context_tokens=geometry.positions_max,
            concurrency=7,
            step_tokens=64,
            kv_bytes=Bytes(size),
        )
    )
    assert kvist_groups(model) == geometry.groups
    assert (planned.blocks, planned.block_bytes_per_rank) == (started.blocks, started.block_bytes)
    assert planned.tokens_capacity == started.tokens_capacity
    assert min(planned.longest_request_tokens, geometry.positions_max) == started.longest_request_tokens
    assert planned.kv_bytes_per_token == geometry.bytes_per_token("float32")
    assert planned.kv_bytes_per_request == started.bytes_for_model_length


def test_what_is_not_said_is_the_same_in_a_plan_and_at_start_up() -> None:
    asked = answered(Ask(model="smollm2", gpu=GpuAsk(memory=Bytes(2**33)), rules="kvist")).deployment
    config = ServeConfig()
    assert asked.step_tokens == config.step_tokens
    assert asked.block_tokens_asked == config.block_tokens
    assert asked.window_checkpoint_tokens == config.window_checkpoint_tokens
    free = Bytes(10**9)
    assert kv_bytes(ServeConfig(device="cuda"), free, Bytes(0)) == int(free * asked.utilisation)


def test_no_other_place_multiplies_heads_by_their_sizes() -> None:
    found = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.py") if multiplies(path)}
    assert found == {ONE_PLACE.relative_to(SOURCES).as_posix()}


def multiplies(path: Path) -> bool:
    """Whether a file has a product of a number of KV heads and the size of one."""
    products = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.BinOp))
    factors = [names(node) for node in products if isinstance(node.op, ast.Mult)]
    return any({"kv_heads", "head_dim_k"} <= each for each in factors)


def names(node: ast.AST) -> set[str]:
    """Names and attributes within an expression."""
    found = [each for each in ast.walk(node) if isinstance(each, ast.Attribute | ast.Name)]
    return {each.attr if isinstance(each, ast.Attribute) else each.id for each in found}


def limits_of(dtype: Dtype, *, block_tokens: int = 16, step_tokens: int = 64) -> KvLimits:
    """Bounds of a small engine."""
    return KvLimits(
        dtype=dtype,
        block_tokens=block_tokens,
        step_tokens=step_tokens,
        sequences_max=4,
        model_tokens_max=Tokens(512),
        window_checkpoint_tokens=Tokens(128),
    )
