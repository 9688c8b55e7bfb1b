"""From model files to a running engine: load, measure, plan, allocate, start.

The order matters: weights and workspace are really allocated and measured before the KV pool is sized, so that
what the pool is given is what is left.
"""

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvist.app.budget import Budget, check_asked, engine_limits, kv_bytes, kv_limits
from kvist.app.cache_dir import cache_root, make_private
from kvist.app.config import ServeConfig
from kvist.app.fabric import OpenFabric, Stored, opened_fabric
from kvist.app.identity import kv_namespace
from kvist.app.kv_memory import ReservedMemory, beside_weights
from kvist.app.locate import ModelFiles
from kvist.app.memory import bytes_free
from kvist.app.progress import Progress, Report
from kvist.app.secret import SECRET_BYTES, load_secret, secret_path
from kvist.app.workspace import measure_workspace, warm_up
from kvist.base.errors import ConfigError, ModelError
from kvist.base.ids import GroupId
from kvist.base.units import Bytes, Tokens
from kvist.blocks.eviction import CopiesFirst
from kvist.blocks.keys import Namespace
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.blocks.window import Retention
from kvist.cost.prefill import PrefillModel, Work, prefill_model
from kvist.engine.backends.cpu.kernel import keep_compiled
from kvist.engine.backends.device import (
    bytes_free_on,
    end_threads,
    meter_of,
    open_device,
    runs_kernels,
    set_threads,
    torch_dtype,
)
from kvist.engine.backends.host_memory import TouchedMemory
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.loading import load_model, weights_bytes
from kvist.engine.backends.tiles import TILE_ROWS
from kvist.engine.backends.torch_backend import TorchBackend
from kvist.engine.below import Below
from kvist.engine.core import EngineCore
from kvist.engine.form import form_of
from kvist.engine.limits import check_limits
from kvist.engine.settings import EngineSettings
from kvist.engine.thread import EngineThread
from kvist.fabric.control import Fabric
from kvist.geometry.config import geometry_from_config
from kvist.geometry.groups import DTYPE_BYTES, ModelGeometry
from kvist.planner.budget import KvLimits, plan_kv

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine that answers, and what it was given; `fabric` is None where it has no tiers."""

    engine: EngineThread
    budget: Budget
    fabric: Fabric | None = None


def read_geometry(directory: Path) -> ModelGeometry:
    """The geometry of the model in a directory.

    Raises:
        ModelError: its config.json is missing, unreadable or of an unsupported model.
    """
    path = directory / "config.json"
    try:
        config: Mapping[str, object] = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    return geometry_from_config(config)


@contextlib.contextmanager
def started_engine(
    files: ModelFiles,
    geometry: ModelGeometry,
    config: ServeConfig,
    report: Report,
    memory: ReservedMemory | None = None,
) -> Iterator[Started]:
    """Loads a model, starts its engine, and stops it in the end with everything below it.

    Args:
        files: of the model.
        geometry: as `read_geometry` reads it from them.
        config: checked settings.
        report: takes how far the start has come.
        memory: for KV, if some is being touched already.

    Raises:
        ModelError: the files do not make a model that can be served.
        ConfigError: settings contradict each other, the model or the machine.
        CapacityError: the memory is not there.
    """
    limits = kv_limits(geometry, config)
    # Before anything is built: contradictions do not depend on what fits.
    check_limits(engine_limits(geometry, config, limits.model_tokens_max), step_tokens=config.step_tokens)
    open_device(config.device)
    secret = _secret(config)
    namespace = kv_namespace(files.directory, geometry, config, report)
    with ExitStack() as stack:
        # Before the weights, because it is quick to refuse, and before the KV pool takes what is left of memory.
        expected = _expected_prefill(files, geometry, config)
        stored = _stored(namespace, geometry, config, expected)
        opened = stack.enter_context(opened_fabric(config, stored, report)) if config.tiers else None
        below = None if opened is None else _below(opened)
        touched = beside_weights(memory, files.directory)
        ground = Ground(files=files, geometry=geometry, config=config, limits=limits, memory=touched)
        backend, budget = _allocated(ground, report)
        end_threads()  # this thread computes no more, and the engine's own is not to wait for its threads
        core = EngineCore(
            backend,
            _cache(namespace, ground, budget, below),
            _settings(geometry, config, budget),
            secret=secret,
            below=below,
        )
        engine = EngineThread(core, budget.limits)
        engine.start()
        stack.callback(engine.stop)
        yield Started(engine=engine, budget=budget, fabric=None if opened is None else opened.fabric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What an engine is built on; `memory` for KV is None where none was touched before."""

    files: ModelFiles
    geometry: ModelGeometry
    config: ServeConfig
    limits: KvLimits
    memory: TouchedMemory | None


def _allocated(ground: Ground, report: Report) -> tuple[TorchBackend, Budget]:
    """Loads the weights, measures what a step takes, and gives the KV pool its memory."""
    config, geometry, device = ground.config, ground.geometry, open_device(ground.config.device)
    if config.threads is not None:
        set_threads(config.threads)
    report(Progress(stage="Loading weights"))
    model = load_model(ground.files.directory, geometry, dtype=torch_dtype(config.dtype), device=device)

    def store_of(blocks: tuple[int, ...], memory: TouchedMemory | None = None) -> KvStore:
        dtype, size = torch_dtype(config.dtype), config.block_tokens
        return KvStore(geometry.groups, blocks, block_tokens=size, dtype=dtype, device=device, memory=memory)

    workspace = _measured(
        lambda blocks: TorchBackend(model, store_of((blocks,) * len(geometry.groups))), ground, report
    )

    report(Progress(stage="Allocating KV memory"))
    plan = plan_kv(geometry, kv_bytes(config, _free(ground), workspace), ground.limits)
    check_asked(config, plan)
    store = store_of(plan.blocks, ground.memory)
    budget = Budget(
        weights=weights_bytes(model),
        workspace=workspace,
        kv=store.nbytes,
        plan=plan,
        limits=engine_limits(geometry, config, plan.longest_request_tokens),
        kv_bytes_per_token=geometry.bytes_per_token(config.dtype),
        block_tokens=config.block_tokens,
    )
    return TorchBackend(model, store), budget


def _free(ground: Ground) -> Bytes:
    """Bytes that KV may take, those included that were touched for it."""
    own = bytes_free_on(open_device(ground.config.device))
    if own is not None:
        return own
    return Bytes(bytes_free() + (0 if ground.memory is None else ground.memory.nbytes))


def _measured(make_backend: Callable[[int], TorchBackend], ground: Ground, report: Report) -> Bytes:
    """What a full step takes, after small ones in which everything is made ready that the first request needs."""
    config, limits, groups = ground.config, ground.limits, len(ground.geometry.groups)
    device = open_device(config.device)
    if runs_kernels(device, torch_dtype(config.dtype)):
        report(Progress(stage="Compiling kernels"))
        _keep_kernels()
        warm_up(make_backend, limits, groups=groups)
    if ground.memory is not None:
        ground.memory.wait()  # what it takes is no workspace
    report(Progress(stage="Measuring a full step"))
    # The second tile makes the masks grow, and the others are like it.
    rows = 2 * TILE_ROWS
    return measure_workspace(make_backend, limits, groups=groups, rows=rows, meter=meter_of(device))


def _keep_kernels() -> None:
    """Has compiled kernels kept in the cache directory; without one they are compiled in every process."""
    try:
        directory = cache_root(os.environ) / "kernels"
        make_private(directory)
    except ConfigError as error:
        _log.info("compiled kernels are not kept: %s", error)
    else:
        keep_compiled(directory)


def _stored(namespace: Namespace, geometry: ModelGeometry, config: ServeConfig, prefill: PrefillModel) -> Stored:
    return Stored(
        namespace=namespace,
        block_tokens=Tokens(config.block_tokens),
        windows=tuple(group.window for group in geometry.groups),
        forms=tuple(form_of(group, config.dtype, config.block_tokens) for group in geometry.groups),
        prefill=prefill,
    )


def _below(opened: OpenFabric) -> Below:
    return Below(tiers=opened.fabric, view=opened.regions.view, time_s=opened.clock.now_s)


def _cache(namespace: Namespace, ground: Ground, budget: Budget, below: Below | None) -> PrefixCache:
    """Pools that give up first what can be loaded again, where there is something to load from."""

    def pool(group: int, blocks: int) -> BlockPool:
        if below is None:
            return BlockPool(blocks)
        return BlockPool(blocks, policy=CopiesFirst(), has_copy=partial(below.tiers.has_copy, GroupId(group)))

    return PrefixCache(
        namespace,
        [pool(group, blocks) for group, blocks in enumerate(budget.plan.blocks)],
        [group.window for group in ground.geometry.groups],
        block_tokens=ground.config.block_tokens,
    )


def _secret(config: ServeConfig) -> bytes:
    """What tenants' hashes are keyed with: of this process alone while its blocks do not leave it."""
    if not config.tiers:
        return secrets.token_bytes(SECRET_BYTES)
    path = secret_path(config.cache_secret_file, os.environ)
    secret = load_secret(path)
    if any(spec.kind == "pool" for spec in config.tiers):
        _log.info("only servers with the same secret find each other's blocks in a pool: %s", path)
    return secret


def _expected_prefill(files: ModelFiles, geometry: ModelGeometry, config: ServeConfig) -> PrefillModel:
    """How long computing should take, from the size of the weights and of attention; a start, until it is measured."""
    weights = sum(path.stat().st_size for path in files.directory.glob("*.safetensors"))
    heads = geometry.query_heads
    unbounded = [group for group in geometry.groups if group.window is None]
    work = Work(
        parameters=weights // DTYPE_BYTES[geometry.dtype],
        attention_width=sum(len(group.layers) * heads * group.head_dim_k for group in unbounded),
    )
    return prefill_model(work, step_tokens=Tokens(config.step_tokens))


def _settings(geometry: ModelGeometry, config: ServeConfig, budget: Budget) -> EngineSettings:
    return EngineSettings(
        groups=geometry.groups,
        kv_bytes=budget.kv,
        kv_bytes_per_token=budget.kv_bytes_per_token,
        block_tokens=config.block_tokens,
        step_tokens=config.step_tokens,
        sequences_max=config.sequences_max,
        overcommit=config.overcommit,
        audits=config.audit,
        offload_prompt_only=config.offload_prompt_only,
        retention=Retention(checkpoint_tokens=Tokens(config.window_checkpoint_tokens)),
    )
