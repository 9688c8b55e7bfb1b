"""vLLM's own scheduler with Kvist's connector in it, as `Case` says; no engine is started, and no model is loaded."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from vllm.v1.structured_output import StructuredOutputManager

from kvist.connectors.vllm.reading import Foreign

BLOCK_TOKENS = 16

CELL = 2
"""Numbers of a token in the KV of the made-up model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is special about a life.

    Attributes:
        windows: of each group, the query's own token included; None: it sees everything.
        blocks: of vLLM's pool.
        overlap: whether a step is planned before the one before it has ended.
        late: whether blocks are copied out only once a step's results were told.
        priority: whether some requests go before others, and take their blocks.
        caching: whether vLLM caches blocks itself.
        guesses: tokens that are guessed with every step.
        fails: one copy in so many fails; 0: none.
        resets: weights are replaced before one step in so many; 0: never.
        streams: whether the input of some requests comes in parts.
        tiers: as after `--tier`; FOLDER stands for a directory of the test's.
    """

    windows: tuple[int | None, ...] = (None,)
    blocks: int = 60
    overlap: bool = False
    late: bool = False
    priority: bool = False
    caching: bool = True
    guesses: int = 0
    fails: int = 0
    resets: int = 0
    streams: bool = False
    tiers: tuple[str, ...] = ("dram=1MiB",)


def scheduler_of(case: Case, model: Path, folder: Path) -> Scheduler:
    """vLLM's scheduler, whose connector knows of no workers yet.

    Args:
        case: says which.
        model: a directory with a model's configuration, of which only the tokens per request count.
        folder: for tiers and settings.
    """
    config = EngineArgs(
        model=str(model),
        load_format="dummy",
        speculative_config=_guessing(case),
        max_model_len=1024,
        max_num_batched_tokens=96,
        max_num_seqs=5,
        block_size=BLOCK_TOKENS,
        async_scheduling=case.overlap,
        enable_prefix_caching=case.caching,
        scheduling_policy="priority" if case.priority else "fcfs",
        kv_transfer_config=_transfer(case, folder),
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = case.blocks
    config.scheduler_config.async_scheduling = case.overlap  # which vLLM on a processor has turned off
    found = (AsyncScheduler if case.overlap else Scheduler)(
        config,
        _kv_cache_config(case),
        StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        hash_block_size=BLOCK_TOKENS,
        log_stats=False,
    )
    assert (config.max_concurrent_batches, found.defer_block_free) == (1 + case.overlap, case.overlap)
    return found


def hasher() -> Callable[[Foreign], list[bytes]]:
    """How vLLM hashes the blocks of requests."""
    function = get_hash_fn_by_name("sha256")
    init_none_hash(function)
    hasher: Callable[[Foreign], list[bytes]] = get_request_block_hasher(BLOCK_TOKENS, function)
    return hasher


def _guessing(case: Case) -> dict[str, object] | None:
    if not case.guesses:
        return None
    return {"method": "ngram", "num_speculative_tokens": case.guesses, "prompt_lookup_max": 2}


def _transfer(case: Case, folder: Path) -> KVTransferConfig:
    settings = {"load_when": "always", "staging_memory": 2**20, "cache_secret_file": str(folder / "secret")}
    path = folder / "kvist.toml"
    path.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items()), encoding="utf-8")
    return KVTransferConfig(
        kv_connector="KvistConnector",
        kv_connector_module_path="kvist.app.vllm",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "kvist_config": str(path),
            "kvist_tiers": [tier.replace("FOLDER", str(folder)) for tier in case.tiers],
        },
    )


def _kv_cache_config(case: Case) -> KVCacheConfig:
    shape = {"block_size": BLOCK_TOKENS, "num_kv_heads": 1, "head_size": CELL // 2, "dtype": torch.float32}

    def spec(window: int | None) -> KVCacheSpec:
        return FullAttentionSpec(**shape) if window is None else SlidingWindowSpec(sliding_window=window, **shape)

    groups = [KVCacheGroupSpec([f"layer.{index}"], spec(window)) for index, window in enumerate(case.windows)]
    return KVCacheConfig(
        num_blocks=case.blocks, kv_cache_tensors=[], kv_cache_groups=groups, hash_block_size=BLOCK_TOKENS
    )
