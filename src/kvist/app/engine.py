"""From model files to a running engine: load, measure, plan, allocate, start.

The order matters: weights and workspace are really allocated and measured before the KV pool is sized, so that
what the pool is given is what is left.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvist.app.budget import Budget, check_asked, engine_limits, kv_bytes, kv_limits
from kvist.app.config import ServeConfig
from kvist.app.identity import kv_namespace
from kvist.app.locate import ModelFiles
from kvist.app.memory import bytes_free
from kvist.app.progress import Progress, Report
from kvist.app.workspace import measure_workspace
from kvist.base.errors import ModelError
from kvist.base.units import Tokens
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.blocks.window import Retention
from kvist.engine.backends.device import bytes_free_on, meter_of, open_device, set_threads, torch_dtype
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.loading import load_model, weights_bytes
from kvist.engine.backends.tiles import TILE_ROWS
from kvist.engine.backends.torch_backend import TorchBackend
from kvist.engine.core import EngineCore
from kvist.engine.limits import check_limits
from kvist.engine.settings import EngineSettings
from kvist.engine.thread import EngineThread
from kvist.geometry.config import geometry_from_config
from kvist.geometry.groups import ModelGeometry
from kvist.planner.budget import plan_kv


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine that answers, and what it was given."""

    engine: EngineThread
    budget: Budget


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


def start_engine(files: ModelFiles, geometry: ModelGeometry, config: ServeConfig, report: Report) -> Started:
    """Loads a model and starts its engine.

    Args:
        files: of the model.
        geometry: as `read_geometry` reads it from them.
        config: checked settings.
        report: takes how far the start has come.

    Raises:
        ModelError: the files do not make a model that can be served.
        ConfigError: settings contradict each other, the model or the machine.
        CapacityError: the memory is not there.
    """
    limits = kv_limits(geometry, config)
    # Before anything is built: contradictions do not depend on what fits.
    check_limits(engine_limits(geometry, config, limits.model_tokens_max), step_tokens=config.step_tokens)
    device = open_device(config.device)
    if config.threads is not None:
        set_threads(config.threads)

    report(Progress(stage="Loading weights"))
    model = load_model(files.directory, geometry, dtype=torch_dtype(config.dtype), device=device)

    def store_of(blocks: tuple[int, ...]) -> KvStore:
        dtype = torch_dtype(config.dtype)
        return KvStore(geometry.groups, blocks, block_tokens=config.block_tokens, dtype=dtype, device=device)

    report(Progress(stage="Measuring a full step"))
    groups = len(geometry.groups)
    workspace = measure_workspace(
        lambda blocks: TorchBackend(model, store_of((blocks,) * groups)),
        limits,
        groups=groups,
        rows=2 * TILE_ROWS,  # the second tile makes the masks grow, and the others are like it
        meter=meter_of(device),
    )

    report(Progress(stage="Allocating KV memory"))
    own = bytes_free_on(device)
    plan = plan_kv(geometry, kv_bytes(config, bytes_free() if own is None else own, workspace), limits)
    check_asked(config, plan)
    store = store_of(plan.blocks)
    budget = Budget(
        weights=weights_bytes(model),
        workspace=workspace,
        kv=store.nbytes,
        plan=plan,
        limits=engine_limits(geometry, config, plan.longest_request_tokens),
        kv_bytes_per_token=geometry.bytes_per_token(config.dtype),
        block_tokens=config.block_tokens,
    )
    cache = PrefixCache(
        kv_namespace(files.directory, geometry, config, report),
        [BlockPool(blocks) for blocks in plan.blocks],
        [group.window for group in geometry.groups],
        block_tokens=config.block_tokens,
    )
    core = EngineCore(
        TorchBackend(model, store), cache, _settings(geometry, config, budget), secret=secrets.token_bytes(32)
    )
    engine = EngineThread(core, budget.limits)
    engine.start()
    return Started(engine=engine, budget=budget)


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
        retention=Retention(checkpoint_tokens=Tokens(config.window_checkpoint_tokens)),
    )
