"""The planner's rules of vLLM against vLLM's own: groups, bytes of a block, printed figures, longest request.

No engine is started: vLLM's functions are asked directly, with settings that hold what they read.
"""

from itertools import combinations, product
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.core import kv_cache_utils as theirs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.geometry.layers import AttentionLayer, KvLayer, LatentLayer, RecurrentLayer, StateTensor
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.vllm import VllmLimits, VllmPool, block_bytes
from kvist.planner.vllm_groups import VllmGroup, vllm_groups

FORM = KvFormat(kv=kv_dtype("bfloat16"), conv="bfloat16", ssm="float32")
DTYPES = {"conv": torch.bfloat16, "ssm": torch.float32}

KINDS: tuple[KvLayer, ...] = (
    AttentionLayer(kv_heads=4, head_dim_k=128, head_dim_v=128),
    AttentionLayer(kv_heads=3, head_dim_k=128, head_dim_v=64),
    AttentionLayer(kv_heads=4, head_dim_k=128, head_dim_v=128, window=Tokens(1024)),
    AttentionLayer(kv_heads=16, head_dim_k=64, head_dim_v=64, window=Tokens(1)),
    AttentionLayer(kv_heads=8, head_dim_k=64, head_dim_v=64, chunk=Tokens(8192)),
    LatentLayer(latent=512, rope=64),
    RecurrentLayer(tensors=(StateTensor(name="conv", shape=(8192, 3)), StateTensor(name="ssm", shape=(32, 128, 128)))),
    RecurrentLayer(tensors=(StateTensor(name="conv", shape=(512, 2)),)),
)
PATTERNS = ((0,), (0, 1), (0, 1, 1), (0, 1, 1, 1, 1, 1), (0, 1, 2), (0, 1, 1, 2, 2, 2))
"""How kinds take turns, from the first layer to the last."""


def settings(tokens: int, step_tokens: int, *, caching: bool) -> SimpleNamespace:
    """What vLLM's functions read of its configuration."""
    cache = SimpleNamespace(
        get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC,
        num_gpu_blocks_override=None,
        mamba_cache_mode="align" if caching else "none",
    )
    return SimpleNamespace(
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=cache,
        max_in_flight_tokens=step_tokens,
        model_config=SimpleNamespace(max_model_len=tokens),
        num_prefill_lookahead_tokens=0,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        speculative_config=None,
    )


def spec_of(layer: KvLayer, block_tokens: int, state_bytes: int, *, caching: bool) -> KVCacheSpec:
    """A layer as vLLM describes it; blocks that hold a state are its platform's business, and come from outside."""
    match layer:
        case LatentLayer():
            return MLAAttentionSpec(
                block_size=block_tokens, num_kv_heads=1, head_size=layer.latent + layer.rope, dtype=torch.bfloat16
            )
        case RecurrentLayer():
            return MambaSpec(
                block_size=block_tokens if caching else 2**20,
                shapes=tuple(each.shape for each in layer.tensors),
                dtypes=tuple(DTYPES[each.name] for each in layer.tensors),
                page_size_padded=state_bytes or None,
                mamba_cache_mode="align" if caching else "none",
            )
    shape = {
        "block_size": block_tokens,
        "num_kv_heads": layer.kv_heads,
        "head_size": layer.head_dim_k,
        "head_size_v": layer.head_dim_v,
        "dtype": torch.bfloat16,
    }
    if layer.window is not None:
        return SlidingWindowSpec(sliding_window=layer.window, **shape)
    if layer.chunk is not None:
        return ChunkedLocalAttentionSpec(attention_chunk_size=layer.chunk, **shape)
    return FullAttentionSpec(**shape)


def aligned(layers: list[KvLayer], block_tokens: int) -> tuple[int, int]:
    """Tokens of a block that holds a state, and the state's bytes with padding; 0 bytes where nothing is aligned."""
    state = max(FORM.state_bytes(layer) for layer in layers)
    token = max(FORM.token_bytes(layer) for layer in layers)
    if not state or not token:
        return block_tokens, 0
    step = max(block_tokens, 128 if any(isinstance(layer, LatentLayer) for layer in layers) else 16)
    tokens = -(-state // (step * token)) * step
    return tokens, tokens * token


def ours_of(layers: list[KvLayer], block_tokens: int) -> tuple[VllmGroup, ...] | None:
    try:
        return vllm_groups(layers, FORM, block_tokens)
    except ConfigError:
        return None


def theirs_of(layers: list[KvLayer], block_tokens: int, config: SimpleNamespace, *, caching: bool) -> list | None:
    tokens, state_bytes = aligned(layers, block_tokens)
    specs = {str(index): spec_of(layer, tokens, state_bytes, caching=caching) for index, layer in enumerate(layers)}
    try:
        return theirs.get_kv_cache_groups(config, specs)
    except NotImplementedError:
        return None


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("block_tokens", [16, 32, 128])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_same_blocks_and_figures(count: int, block_tokens: int, caching: bool) -> None:
    compared = 0
    lengths = product((5, 12, 37), (1000, 131_072), (512, 8192))
    for kinds, pattern, (size, tokens, step_tokens) in product(combinations(KINDS, count), PATTERNS, list(lengths)):
        if max(pattern) != count - 1:
            continue
        layers = [kinds[pattern[index % len(pattern)]] for index in range(size)]
        config = settings(tokens, step_tokens, caching=caching)
        ours = ours_of(layers, block_tokens)
        found = theirs_of(layers, block_tokens, config, caching=caching)
        assert (ours is None) == (found is None), layers
        if ours is None or found is None:
            continue
        compared += 1
        limits = VllmLimits(step_tokens=step_tokens, prefix_caching=caching)
        assert figures(ours, limits, size, tokens) == their_figures(found, config, tokens), layers
    assert compared >= 24


BYTES = 3 * 10**10 + 7


def figures(groups: tuple[VllmGroup, ...], limits: VllmLimits, size: int, tokens: int) -> tuple[object, ...]:
    block = block_bytes(groups, range(size))
    pool = VllmPool(groups=groups, blocks=BYTES // block, limits=limits)
    members = sorted(tuple(sorted(group.layers)) for group in groups)
    return members, block, pool.concurrency(tokens), pool.printed_tokens(tokens), pool.longest_request(tokens)


def their_figures(groups: list, config: SimpleNamespace, tokens: int) -> tuple[object, ...]:
    block = theirs._pool_bytes_per_block(config, groups)
    made = SimpleNamespace(kv_cache_groups=groups, num_blocks=BYTES // block)
    members = sorted(tuple(sorted(int(name) for name in group.layer_names)) for group in groups)
    printed, concurrency = theirs.get_kv_cache_capacity(config, made)
    longest = theirs._estimate_max_model_len_from_groups(config, groups, BYTES - block)
    return members, block, concurrency, printed, longest
