"""Whatever the model: more never fits in less, spreading neither invents nor loses bytes, and what is promised fits."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.base.errors import ConfigError
from kvist.base.units import Bytes, Tokens
from kvist.geometry.layers import AttentionLayer, KvLayer, LatentLayer, ModelLayers, RecurrentLayer, StateTensor
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KV_DTYPES, KvFormat, kv_dtype
from kvist.planner.memory import Rules, model_bytes, weights_bytes_per_rank
from kvist.planner.plan import Plan, plan
from kvist.planner.sharding import Parallel, rank_layers, stage_layers
from kvist.planner.useful import bytes_fixed, bytes_per_token, useful_bytes
from kvist.planner.vllm_groups import vllm_groups
from planned_models import machine_of, model_of

HEADS = 16
FORM = KvFormat(kv=kv_dtype("bfloat16"), ssm="float32")
degrees = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def attention(draw: st.DrawFn, kinds: tuple[str, ...] = ("full", "window", "chunk")) -> AttentionLayer:
    kind, reach = draw(st.sampled_from(kinds)), Tokens(draw(st.sampled_from([1, 16, 100, 4096])))
    return AttentionLayer(
        kv_heads=draw(degrees),
        head_dim_k=draw(st.sampled_from([8, 64, 192])),
        head_dim_v=draw(st.sampled_from([8, 64])),
        window=reach if kind == "window" else None,
        chunk=reach if kind == "chunk" else None,
    )


latents = st.builds(LatentLayer, latent=st.sampled_from([64, 512]), rope=st.sampled_from([16, 64]))
states = st.builds(
    lambda rows, inner: RecurrentLayer(
        tensors=(StateTensor(name="conv", shape=(rows * HEADS, 3)), StateTensor(name="ssm", shape=(HEADS, inner)))
    ),
    st.integers(1, 8),
    st.integers(1, 4096),
)


def models(kinds: st.SearchStrategy[KvLayer]) -> st.SearchStrategy[ModelLayers]:
    """Models of up to three kinds of layers in any order."""
    few = st.lists(kinds, min_size=1, max_size=3)
    layers = few.flatmap(lambda some: st.lists(st.sampled_from(some), min_size=1, max_size=24))
    return layers.map(lambda each: model_of(*each, query_heads=HEADS))


anything = models(attention() | latents | states)
engine_models = models(attention(kinds=("full", "window")))
full_models = models(attention(kinds=("full",)) | latents)


def deployment(model: ModelLayers, rules: Rules, kv_bytes: int, tokens: int, requests: int) -> Deployment:
    return Deployment(
        model=model,
        machine=machine_of(80),
        form=FORM,
        rules=rules,
        kv_bytes=Bytes(kv_bytes),
        context_tokens=Tokens(tokens),
        concurrency=requests,
        step_tokens=256,
    )


def planned(asked: Deployment) -> Plan | None:
    """The plan; None where vLLM has no blocks of one size for such layers."""
    try:
        return plan(asked)
    except ConfigError as error:
        if "blocks of one size" not in str(error):
            raise
        return None


def served(test: Callable[[Deployment, int], None]) -> Callable[[], None]:
    """Runs a test with deployments by either engine's rules, and a number by which something grows."""
    numbers = st.tuples(st.integers(1, 2**34), st.integers(1, 65_536), st.integers(1, 40))
    vllm = st.builds(lambda model, each: deployment(model, "vllm", *each), anything, numbers)
    kvist = st.builds(lambda model, each: deployment(model, "kvist", *each), engine_models, numbers)

    @settings(deadline=None, max_examples=40)
    @given(asked=vllm | kvist, more=st.integers(1, 65_536))
    def run(asked: Deployment, more: int) -> None:
        test(asked, more)

    return run


def check_longer(asked: Deployment, more: int) -> None:
    one, longer = planned(asked), planned(replace(asked, context_tokens=Tokens(asked.context_tokens + more)))
    if one is None or longer is None:
        assert one is longer
        return
    assert one.kv_bytes_per_request <= longer.kv_bytes_per_request
    assert one.kv_bytes_needed_per_rank <= longer.kv_bytes_needed_per_rank
    assert one.concurrent_requests >= longer.concurrent_requests
    assert one.fits or not longer.fits


def check_more_requests(asked: Deployment, more: int) -> None:
    one, crowd = planned(asked), planned(replace(asked, concurrency=asked.concurrency + more % 40 + 1))
    if one is None or crowd is None:
        assert one is crowd
        return
    assert one.kv_bytes_total < crowd.kv_bytes_total
    assert one.kv_bytes_needed_per_rank < crowd.kv_bytes_needed_per_rank
    assert one.kv_bytes_per_request == crowd.kv_bytes_per_request


def check_more_bytes(asked: Deployment, more: int) -> None:
    assert asked.kv_bytes is not None
    one, larger = planned(asked), planned(replace(asked, kv_bytes=Bytes(asked.kv_bytes + more * 1000)))
    if one is None or larger is None:
        assert one is larger
        return
    assert all(few <= many for few, many in zip(one.blocks, larger.blocks, strict=True))
    assert one.concurrent_requests <= larger.concurrent_requests
    assert one.longest_request_tokens <= larger.longest_request_tokens
    assert one.kv_bytes_needed_per_rank == larger.kv_bytes_needed_per_rank


def check_what_is_needed(asked: Deployment, more: int) -> None:
    one = planned(asked)
    if one is None:
        return
    needed = one.kv_bytes_needed_per_rank
    assert one.fits == (one.missing_bytes_per_rank == 0) == (asked.kv_bytes is not None and asked.kv_bytes >= needed)
    assert one.kv_bytes_left_per_rank == asked.kv_bytes
    enough, less = (planned(replace(asked, kv_bytes=Bytes(max(1, size)))) for size in (needed, needed - 1))
    assert enough is not None
    assert less is not None
    assert enough.fits
    assert not less.fits
    assert less.missing_bytes_per_rank == 1


def check_what_is_promised(asked: Deployment, more: int) -> None:
    one = planned(asked)
    if one is None:
        return
    used = sum(count * size for count, size in zip(one.blocks, one.block_bytes_per_rank, strict=True))
    assert used <= (asked.kv_bytes or 0)
    assert one.concurrent_requests * one.kv_bytes_per_request_per_rank <= used
    useful = useful_bytes(asked.model.layers, asked.form, asked.context_tokens)
    assert useful <= one.kv_bytes_per_request
    assert (one.concurrent_requests > 0) <= (one.longest_request_tokens >= asked.context_tokens)


test_longer_requests_never_take_less = served(check_longer)
test_more_requests_never_take_less = served(check_more_requests)
test_more_bytes_never_hold_less = served(check_more_bytes)
test_what_is_needed_is_just_enough = served(check_what_is_needed)
test_what_is_promised_is_there = served(check_what_is_promised)


@settings(deadline=None)
@given(model=anything, tensor=degrees, pipeline=st.integers(1, 6))
def test_spreading_neither_invents_nor_loses_bytes(model: ModelLayers, tensor: int, pipeline: int) -> None:
    pipeline = min(pipeline, len(model.layers))
    parallel = Parallel(tensor=tensor, pipeline=pipeline)
    ranks = [rank_layers(model, parallel, stage) for stage in range(pipeline)]
    stages = stage_layers(len(model.layers), pipeline)
    assert [index for stage in stages for index in stage] == list(range(len(model.layers)))
    assert sum(map(len, ranks)) == len(model.layers)
    spread = tensor * sum(_kept(layer, tensor) for rank in ranks for layer in rank)
    assert spread == sum(_kept(layer, tensor) * _times(layer, tensor) for layer in model.layers)


def _kept(layer: KvLayer, tensor: int) -> int:
    return bytes_per_token([layer], FORM) + bytes_fixed([layer], FORM)


def _times(layer: KvLayer, tensor: int) -> int:
    """How often the bytes of a layer are kept."""
    if isinstance(layer, LatentLayer):
        return tensor
    return max(1, tensor // layer.kv_heads) if isinstance(layer, AttentionLayer) else 1


@settings(deadline=None)
@given(model=full_models, tensor=degrees, tokens=st.integers(1, 100_000))
def test_divided_tokens_are_each_kept_as_often_as_heads_are_left(model: ModelLayers, tensor: int, tokens: int) -> None:
    repeated = [_times(layer, tensor) for layer in model.layers]
    most = max(degree for degree in (1, 2, 4, 8, 16) if all(times % degree == 0 for times in repeated))
    whole = Fraction(plan_of(model, tensor, 1, tokens).kv_replication)
    assert Fraction(plan_of(model, tensor, most, tokens).kv_replication) == whole / most


def plan_of(model: ModelLayers, tensor: int, context: int, tokens: int) -> Plan:
    asked = deployment(model, "vllm", 2**40, tokens, 1)
    return plan(replace(asked, parallel=Parallel(tensor=tensor, context=context)))


@settings(deadline=None)
@given(model=anything, block_tokens=st.sampled_from([16, 32, 128]))
def test_groups_have_every_layer_once_and_blocks_of_one_size(model: ModelLayers, block_tokens: int) -> None:
    try:
        groups = vllm_groups(model.layers, FORM, block_tokens)
    except ConfigError as error:
        if "blocks of one size" not in str(error):
            raise
        return
    assert sorted(index for group in groups for index in group.layers) == list(range(len(model.layers)))
    assert len(groups) == 1 or len({block.bytes_taken for group in groups for block in group.blocks}) == 1
    for group in groups:
        assert all(block.bytes_used <= block.bytes_taken for block in group.blocks)
        assert len({(block.kind, block.reach, block.block_tokens) for block in group.blocks}) == 1
        assert all(group.block_tokens % block_tokens == 0 or block.kind == "state" for block in group.blocks) or any(
            isinstance(layer, RecurrentLayer) for layer in model.layers
        )


@settings(deadline=None)
@given(model=anything, tensor=degrees, pipeline=st.integers(1, 6), stored=st.none() | st.integers(1, 10**12))
def test_weights_are_all_somewhere(model: ModelLayers, tensor: int, pipeline: int, stored: int | None) -> None:
    model = replace(model, parameters=replace(model.parameters, total=10**8))
    parallel = Parallel(tensor=tensor, pipeline=min(pipeline, len(model.layers)))
    most = weights_bytes_per_rank(model, parallel, stored)
    whole = model_bytes(model) if stored is None else stored
    assert whole // parallel.ranks <= most <= whole


@given(name=st.sampled_from(sorted(KV_DTYPES)), numbers=st.integers(1, 4096), more=st.integers(1, 4096))
def test_longer_vectors_never_take_less(name: str, numbers: int, more: int) -> None:
    form = kv_dtype(name)
    one, both = form.vector_bytes(numbers), form.vector_bytes(numbers + more)
    assert numbers * form.bits <= 8 * one
    assert one <= both <= one + form.vector_bytes(more)
