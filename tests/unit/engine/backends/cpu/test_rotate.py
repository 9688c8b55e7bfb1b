"""One pass norms, rotates and writes like transformers' functions one after the other, and touches nothing else."""

import importlib
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from depth import examples
from kvist.engine.backends.cpu.rotate import HeadNorms, KvTarget, Rotation, rotate_and_write

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3"]
NORMS = {0.0: Qwen3RMSNorm, 1.0: Gemma3RMSNorm}
EPSILON = 1e-6
BEFORE = 7.0
"""What the pool holds where nothing is written."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    rows: int = 5
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    rotary_dim: int = 16


class Step:
    """What one layer is given: numbers drawn at random, and places out of order in a pool larger than they need."""

    def __init__(self, shape: Shape, dtype: torch.dtype, *, rotation_dtype: torch.dtype | None = None) -> None:
        self.shape, self.dtype = shape, dtype
        self.generator = torch.Generator().manual_seed(shape.rows * 31 + shape.head_dim)
        self.fused = self.normal(shape.rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
        angles = self.normal(shape.rows, shape.rotary_dim // 2).float() * 3
        both = torch.cat([angles, angles], -1)
        self.rotation: Rotation = (both.cos().to(rotation_dtype or dtype), both.sin().to(rotation_dtype or dtype))
        self.tokens = 2 * shape.rows + 3
        self.places = torch.randperm(self.tokens, generator=self.generator)[: shape.rows]
        # The layer in the middle of three: what is written too far is seen.
        pool = (3, shape.kv_heads, self.tokens, shape.head_dim)
        self.key_pool, self.value_pool = torch.full(pool, BEFORE, dtype=dtype), torch.full(pool, BEFORE, dtype=dtype)
        self.into = KvTarget(keys=self.key_pool[1], values=self.value_pool[1], places=self.places)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.dtype)

    def norms(self, offset: float) -> HeadNorms:
        query, key = self.normal(self.shape.head_dim), self.normal(self.shape.head_dim)
        return HeadNorms(query=query, key=key, epsilon=EPSILON, offset=offset)

    def written(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [kv_heads, rows, head_dim] at the places, after a look at all others."""
        for pool in (self.key_pool, self.value_pool):
            elsewhere = torch.ones(pool.shape[:3], dtype=torch.bool)
            elsewhere[1, :, self.places] = False
            assert (pool[elsewhere] == BEFORE).all()
        return self.key_pool[1][:, self.places], self.value_pool[1][:, self.places]


@dataclass(frozen=True, kw_only=True)
class Found:
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def ours(step: Step, rotation: Rotation | None, norms: HeadNorms | None = None) -> Found:
    """Keys and values as [rows, kv_heads, head_dim]."""
    query = rotate_and_write(step.fused, rotation, step.into, norms=norms)
    assert query.dtype == step.dtype
    assert query.is_contiguous()
    key, value = step.written()
    return Found(query=query, key=key.transpose(0, 1), value=value.transpose(0, 1))


def theirs(
    step: Step, dtype: torch.dtype, rotation: Rotation | None, norms: HeadNorms | None = None, family: str = "phi3"
) -> Found:
    """What transformers' functions make of the same, computed in `dtype`; phi3's do what all others' do, and more."""
    shape = step.shape
    heads = step.fused.to(dtype).unflatten(-1, (-1, shape.head_dim))
    query, key, value = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
    if norms is not None:
        query, key = (_normed(x, w, norms.offset) for x, w in ((query, norms.query), (key, norms.key)))
    if rotation is not None:
        model = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        query, key = model.apply_rotary_pos_emb(query, key, *(part.to(dtype) for part in rotation))
    return Found(query=query, key=key, value=value)


def _normed(x: torch.Tensor, weight: torch.Tensor, offset: float) -> torch.Tensor:
    if x.dtype == torch.float64:  # their modules compute in float32 whatever they are given
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * (offset + weight.double())
    module = NORMS[offset](weight.shape[0], eps=EPSILON).to(x.dtype)
    module.weight.data.copy_(weight)
    return module(x).detach()


def check(found: Found, expected: Found, *, within: float) -> None:
    """Sums of two products lose what they cancel: so the distance is measured by the largest number."""
    for ours_, theirs_ in ((found.query, expected.query), (found.key, expected.key)):
        assert ours_.shape == theirs_.shape
        scale = theirs_.abs().max().item() if theirs_.numel() else 0.0
        torch.testing.assert_close(ours_, theirs_.to(ours_.dtype), rtol=within, atol=within * scale)
    assert torch.equal(found.value, expected.value.to(found.value.dtype))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_rotates_so(family: str) -> None:
    step = Step(Shape(), torch.float32)
    check(ours(step, step.rotation), theirs(step, torch.float32, step.rotation, family=family), within=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(rows=0),
        Shape(rows=1),
        Shape(rows=1, heads=1, kv_heads=1, head_dim=2, rotary_dim=2),
        Shape(rows=3, heads=9, kv_heads=3, head_dim=64, rotary_dim=64),
        Shape(rows=7, heads=4, kv_heads=1, head_dim=256, rotary_dim=256),
        Shape(rows=33, heads=5, kv_heads=5, head_dim=96, rotary_dim=72),
        Shape(rows=4, heads=3, kv_heads=1, head_dim=19, rotary_dim=6),
    ],
)
def test_sizes(shape: Shape, threads: int, torch_threads) -> None:
    torch_threads(threads)
    step = Step(shape, torch.float32)
    check(ours(step, step.rotation), theirs(step, torch.float32, step.rotation), within=1e-6)


@settings(max_examples=examples(40), deadline=None)
@given(
    rows=st.integers(0, 9),
    heads=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    head_dim=st.integers(2, 40),
    part=st.floats(0, 1),
    offset=st.sampled_from([None, 0.0, 1.0]),
)
def test_any_shape(rows: int, heads: tuple[int, int], head_dim: int, part: float, offset: float | None) -> None:
    rotary_dim = max(2, int(part * head_dim) // 2 * 2)
    kv_heads, times = heads
    shape = Shape(rows=rows, heads=kv_heads * times, kv_heads=kv_heads, head_dim=head_dim, rotary_dim=rotary_dim)
    step = Step(shape, torch.float32)
    norms = None if offset is None else step.norms(offset)
    expected = theirs(step, torch.float64, step.rotation, norms)
    check(ours(step, step.rotation, norms), expected, within=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [None, 0.0, 1.0])
def test_a_layer_without_rotation_only_norms_and_writes(offset: float | None, dtype: torch.dtype) -> None:
    step = Step(Shape(), dtype)
    norms = None if offset is None else step.norms(offset)
    within = {torch.float32: 1e-6, torch.bfloat16: 2**-8}[dtype]
    check(ours(step, None, norms), theirs(step, torch.float64, None, norms), within=0.0 if norms is None else within)


@pytest.mark.parametrize("offset", [None, 0.0, 1.0])
def test_norms_per_head_come_before_the_rotation(offset: float | None) -> None:
    step = Step(Shape(rotary_dim=10), torch.float32)
    norms = None if offset is None else step.norms(offset)
    check(ours(step, step.rotation, norms), theirs(step, torch.float32, step.rotation, norms), within=2e-6)


@pytest.mark.parametrize("rotation_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [None, 0.0, 1.0])
def test_in_bfloat16_it_is_no_further_from_the_formula_than_theirs(
    offset: float | None, rotation_dtype: torch.dtype
) -> None:
    step = Step(Shape(rows=40, head_dim=64, rotary_dim=64), torch.bfloat16, rotation_dtype=rotation_dtype)
    norms = None if offset is None else step.norms(offset)
    exact = theirs(step, torch.float64, step.rotation, norms)
    rounded = theirs(step, torch.bfloat16, step.rotation, norms)
    found = ours(step, step.rotation, norms)
    for name in ("query", "key"):
        expected = getattr(exact, name)
        off, theirs_off = ((getattr(of, name).double() - expected).abs() for of in (found, rounded))
        assert off.mean() <= theirs_off.mean(), name
        # One rounding, to eight bits, and float32's own.
        assert (off <= expected.abs() * 2**-8 * 1.001 + 1e-5).all(), name
    assert torch.equal(found.value, rounded.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_and_tokens_may_lie_apart(dtype: torch.dtype) -> None:
    """The joint projection within a wider one, cosines and sines within one table, a pool with heads innermost."""
    step = Step(Shape(), dtype)
    expected = ours(step, step.rotation)
    wide = step.normal(2 * step.shape.rows, step.fused.shape[1] + 13)
    wide[::2, 9:-4] = step.fused
    table = torch.cat([*step.rotation], -1)
    pools = [torch.full((step.tokens, 2, 3, step.shape.head_dim), BEFORE, dtype=dtype) for _ in range(2)]
    keys, values = (pool[:, :, 1].transpose(0, 1) for pool in pools)
    into = KvTarget(keys=keys, values=values, places=step.places)
    found = rotate_and_write(wide[::2, 9:-4], (table[:, :16], table[:, 16:]), into)
    assert torch.equal(found, expected.query)
    for pool, now in zip(pools, (expected.key, expected.value), strict=True):
        assert torch.equal(pool[step.places][:, :, 1], now)
        pool[step.places, :, 1] = BEFORE
        assert (pool == BEFORE).all()


def test_what_is_no_number_stays_so() -> None:
    step = Step(Shape(rows=2), torch.bfloat16)
    step.fused[1] = math.nan
    found = ours(step, step.rotation)
    assert found.query[0].isfinite().all()
    assert all(part[1].isnan().all() for part in (found.query, found.key, found.value))


def test_what_does_not_fit_is_our_mistake() -> None:
    step = Step(Shape(), torch.bfloat16)
    keys, values, places = step.into.keys, step.into.values, step.places
    cosines, sines = step.rotation
    for rotation, into in (
        (step.rotation, KvTarget(keys=keys.float(), values=values, places=places)),
        (step.rotation, KvTarget(keys=keys, values=values[:1], places=places)),
        (step.rotation, KvTarget(keys=keys, values=values, places=places[1:])),
        ((cosines[1:], sines[1:]), step.into),
        ((cosines, sines[:, 1:]), step.into),
        ((cosines, sines.float()), step.into),
    ):
        with pytest.raises(AssertionError, match=r"into|and|places|rows"):
            rotate_and_write(step.fused, rotation, into)
    assert (step.key_pool == BEFORE).all()
