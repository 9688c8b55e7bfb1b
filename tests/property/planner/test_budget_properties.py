"""Whatever the model and the memory: budgets are kept, more is never less, and what is promised fits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.base.errors import CapacityError
from kvist.base.units import Tokens
from kvist.geometry.groups import KvGroup, ModelGeometry
from kvist.planner.budget import KvLimits, KvPlan, free_memory, kv_budget_from_fraction, plan_kv


@st.composite
def geometries(draw: st.DrawFn) -> ModelGeometry:
    """Models with up to three groups of different windows and shapes, at most one of them full."""
    windows = draw(st.lists(st.none() | st.integers(1, 300), min_size=1, max_size=3, unique=True))
    groups = tuple(
        KvGroup(
            layers=tuple(range(draw(st.integers(1, 6)))),
            kv_heads=draw(st.integers(1, 3)),
            head_dim_k=draw(st.integers(1, 8)),
            head_dim_v=draw(st.integers(1, 8)),
            window=None if window is None else Tokens(window),
        )
        for window in sorted(windows, key=lambda window: (window is not None, -(window or 0)))
    )
    return ModelGeometry(
        architecture="Any",
        layers=sum(len(group.layers) for group in groups),
        query_heads=6,
        hidden_size=48,
        vocab_size=300,
        positions_max=Tokens(2**20),
        groups=groups,
        rope=(),
        dtype="float32",
    )


limits = st.builds(
    KvLimits,
    dtype=st.sampled_from(["bfloat16", "float32"]),
    block_tokens=st.integers(1, 32),
    step_tokens=st.integers(1, 256),
    sequences_max=st.integers(1, 64),
    model_tokens_max=st.integers(1, 4096).map(Tokens),
    window_checkpoint_tokens=st.integers(1, 8192).map(Tokens),
)
sizes = st.integers(0, 2**17) | st.integers(0, 2**24)


def plan_or_none(geometry: ModelGeometry, kv_bytes: int, bounds: KvLimits) -> KvPlan | None:
    """The plan, or None if the bytes do not hold a block of each group."""
    try:
        return plan_kv(geometry, kv_bytes, bounds)
    except CapacityError:
        return None


def fits(plan: KvPlan, geometry: ModelGeometry, tokens: int, bounds: KvLimits) -> bool:
    """Whether one request of this length could be admitted."""
    return all(bounds.peak(group, tokens) <= have for group, have in zip(geometry.groups, plan.blocks, strict=True))


@settings(deadline=None)
@given(geometry=geometries(), kv_bytes=sizes, bounds=limits)
def test_blocks_never_cost_more_than_the_budget(geometry: ModelGeometry, kv_bytes: int, bounds: KvLimits) -> None:
    plan = plan_or_none(geometry, kv_bytes, bounds)
    one_each = sum(bounds.block_bytes(group) for group in geometry.groups)
    assert (plan is None) == (kv_bytes < one_each)
    if plan is not None:
        cost = sum(count * size for count, size in zip(plan.blocks, plan.block_bytes, strict=True))
        assert plan.bytes_used == cost <= kv_bytes == plan.bytes_budget
        assert min(plan.blocks) >= 1


@settings(deadline=None)
@given(geometry=geometries(), kv_bytes=sizes, more=st.integers(1, 4096) | sizes, bounds=limits)
def test_more_bytes_never_mean_less_of_anything(
    geometry: ModelGeometry, kv_bytes: int, more: int, bounds: KvLimits
) -> None:
    small, large = (plan_or_none(geometry, size, bounds) for size in (kv_bytes, kv_bytes + more))
    if small is None or large is None:
        assert small is None
        return
    assert all(one <= other for one, other in zip(small.blocks, large.blocks, strict=True))
    assert small.tokens_capacity <= large.tokens_capacity
    assert small.longest_request_tokens <= large.longest_request_tokens
    if small.longest_request_tokens == large.longest_request_tokens:
        assert small.requests_at_longest <= large.requests_at_longest


@settings(deadline=None)
@given(geometry=geometries(), kv_bytes=sizes, bounds=limits)
def test_the_longest_request_fits_and_one_token_more_does_not(
    geometry: ModelGeometry, kv_bytes: int, bounds: KvLimits
) -> None:
    plan = plan_or_none(geometry, kv_bytes, bounds)
    if plan is None:
        return
    longest = plan.longest_request_tokens
    assert 1 <= longest <= bounds.model_tokens_max
    assert fits(plan, geometry, longest, bounds)
    assert plan.fits_model_length == (longest == bounds.model_tokens_max)
    if not plan.fits_model_length:
        assert not fits(plan, geometry, longest + 1, bounds)


@settings(deadline=None)
@given(geometry=geometries(), kv_bytes=sizes, bounds=limits)
def test_the_requests_promised_together_fit_together(geometry: ModelGeometry, kv_bytes: int, bounds: KvLimits) -> None:
    plan = plan_or_none(geometry, kv_bytes, bounds)
    if plan is None:
        return
    assert 1 <= plan.requests_at_longest <= bounds.sequences_max
    peaks = [bounds.peak(group, plan.longest_request_tokens) for group in geometry.groups]
    taken = [plan.requests_at_longest * peak for peak in peaks]
    assert all(need <= have for need, have in zip(taken, plan.blocks, strict=True))
    if plan.requests_at_longest < bounds.sequences_max:
        assert any(need + peak > have for need, peak, have in zip(taken, peaks, plan.blocks, strict=True))


@settings(deadline=None)
@given(geometry=geometries(), bounds=limits)
def test_what_a_request_of_the_model_length_takes_is_enough_for_it(geometry: ModelGeometry, bounds: KvLimits) -> None:
    enough = bounds.request_bytes(geometry.groups, bounds.model_tokens_max)
    assert plan_kv(geometry, enough, bounds).fits_model_length
    less = plan_or_none(geometry, enough - 1, bounds)
    assert less is None or not less.fits_model_length


@given(total=st.integers(0, 2**50), used=st.integers(0, 2**50), percent=st.integers(1, 100))
def test_a_fraction_is_exact(total: int, used: int, percent: int) -> None:
    expected = (total - used) * percent // 100
    try:
        assert kv_budget_from_fraction(total, used, percent / 100) == expected > 0
    except CapacityError:
        assert total - used < 100 / percent


@given(
    available=st.integers(0, 2**50),
    limit=st.none() | st.integers(0, 2**63),
    used=st.none() | st.integers(0, 2**50),
)
def test_free_never_exceeds_either_side(available: int, limit: int | None, used: int | None) -> None:
    free = free_memory(available, limit, used)
    assert 0 <= free <= available
    assert limit is None or free <= max(0, limit - (used or 0))
