"""The class that vLLM loads; it translates and delegates, and decides nothing.

    vllm serve MODEL --kv-transfer-config '{
        "kv_connector": "KvistConnector", "kv_connector_module_path": "kvist.app.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"kvist_config": "kvist.toml"}}'

vLLM makes one of it in the scheduler's process and one in each worker, before the former; then it tells the scheduler's
of all workers; only then come requests.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import vllm

from kvist.connectors.vllm.versions import check_release, refusal

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
        KVConnectorRole,
        KVConnectorTransferResults,
        KVConnectorWorkerMetadata,
        SupportsHMA,
    )
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group
    from vllm.platforms import current_platform
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError as error:
    raise refusal(vllm.__version__, error) from error

from kvist.app.clock import SystemClock
from kvist.app.connector_config import read_connector_config
from kvist.app.vllm_fabric import Home
from kvist.app.vllm_metrics import KvistProm, KvistStats
from kvist.app.vllm_system import running_system, speak_as
from kvist.connectors.vllm.orders import StepOrders, StepReport
from kvist.connectors.vllm.reach import WorkerFacts
from kvist.connectors.vllm.reading import finished_frees, finished_loads
from kvist.connectors.vllm.reading_config import check_setup, engine_of, engine_setup, groups_of, packing_of
from kvist.connectors.vllm.shapes import WorkerShape
from kvist.connectors.vllm.statistics import Interval
from kvist.connectors.vllm.worker import WorkerSide

Foreign: TypeAlias = Any
"""An object of vLLM's, whose types are not known here."""

_FIGURES_S = 0.25
"""How often figures are sent, at most; those of the last step before a pause may wait for the next one."""

_SOURCES: Mapping[str, CacheHitSource] = {"dram": CacheHitSource.HOST, "disk": CacheHitSource.DISK}
"""What vLLM calls kinds of tiers; it has no name for a pool."""


@dataclass(frozen=True, slots=True)
class KvistHandshake(KVConnectorHandshakeMetadata):
    """What a worker says of itself."""

    shape: WorkerShape


@dataclass(frozen=True, slots=True)
class KvistOrders(KVConnectorMetadata):
    """What the workers do with a step."""

    orders: StepOrders


@dataclass(frozen=True, slots=True)
class KvistReport(KVConnectorWorkerMetadata):
    """What became of orders."""

    report: StepReport

    def aggregate(self, other: Self) -> Self:
        """What two sets of workers have reported together."""
        return type(self)(self.report.merged(other.report))


class KvistConnector(KVConnectorBase_V1, SupportsHMA):
    """Kvist under vLLM: one of two sides, as its role says."""

    def __init__(self, vllm_config: Foreign, role: Foreign, kv_cache_config: Foreign) -> None:
        """Checks whatever can be checked at the start.

        Raises:
            ConfigError: this vLLM, this model or these settings cannot be used; says why, and what to do.
        """
        check_release(vllm.__version__, KVConnectorBase_V1, SupportsHMA)
        super().__init__(vllm_config, role, kv_cache_config)
        self._groups = groups_of(kv_cache_config)
        self._setup = engine_setup(vllm_config, kv_cache_config)
        check_setup(self._setup)
        self._home: Home | None = None
        self._worker: WorkerSide | None = None
        self._invalid: set[int] = set()
        self._interval, self._figures_s, self._clock = Interval(), float("-inf"), SystemClock()
        speak_as(logging.getLogger("vllm"))
        if role == KVConnectorRole.SCHEDULER:
            config = read_connector_config(self._setup.extra)
            engine = engine_of(vllm.__version__, vllm_config, kv_cache_config)
            self._home = Home(config, engine, lambda: bytes(kv_cache_utils.NONE_HASH))

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache delivers nothing: what is not stored is computed again."""
        return False

    # ---- a worker's side

    def register_kv_caches(self, kv_caches: Mapping[str, Foreign]) -> None:
        """Looks at the KV tensors.

        Raises:
            ConfigError: they cannot be stored.
        """
        config = self._kv_cache_config
        platform = "cuda" if current_platform.is_cuda() else str(current_platform.device_name)
        facts = WorkerFacts(
            pipeline_rank=get_pp_group().rank_in_group,
            tensor_rank=get_tp_group().rank_in_group,
            machine=running_system(),
            packing=packing_of(platform, vllm.__version__, self._vllm_config, self._groups),
            replicas=self._setup.replicas,
            block_bytes=tuple(each.block_bytes for each in self._groups),
            whole_requests=len(config.kv_cache_groups) > 1,
        )
        self._worker = WorkerSide([each.group for each in self._groups], facts, self._clock)
        self._worker.register(kv_caches, self._setup.pool_blocks)

    def get_handshake_metadata(self) -> KvistHandshake:
        """What this worker says of itself to the scheduler's side."""
        return KvistHandshake(self._workers_side.shape())

    def handle_preemptions(self, kv_connector_metadata: KvistOrders) -> None:
        """A step begins: blocks that are still to be read are read now, since it may overwrite them."""
        self._workers_side.begin(kv_connector_metadata.orders)

    def start_load_kv(self, forward_context: Foreign, **kwargs: Foreign) -> None:  # noqa: ARG002  given by vLLM
        """Copies in what has landed, for requests that are not in the step."""
        self._workers_side.load()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No request of a step waits for a load."""

    def save_kv_layer(self, layer_name: str, kv_layer: Foreign, attn_metadata: Foreign, **kwargs: Foreign) -> None:
        """Layers are copied out together, when the step is over."""

    def wait_for_save(self) -> None:
        """Copies out the blocks that the step has filled."""
        self._workers_side.store()

    def get_transfer_results(self, finished_req_ids: Collection[str]) -> Foreign:  # noqa: ARG002  given by vLLM
        """Requests whose loads are over, those of them to recompute, and those whose blocks are free."""
        results = self._workers_side.results()
        self._invalid |= results.invalid
        return KVConnectorTransferResults(
            finished_sending=set(results.freed),
            finished_recving=set(results.finished),
            failed_recving=set(results.failed),
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks from whose first on requests are recomputed."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    def build_connector_worker_meta(self) -> KvistReport | None:
        """What became of orders."""
        report = self._workers_side.report()
        return None if report is None else KvistReport(report)

    @property
    def _workers_side(self) -> WorkerSide:
        assert self._worker is not None, "vLLM has not shown this worker's KV"
        return self._worker

    # ---- the scheduler's side

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], KvistHandshake]) -> None:
        """All workers are known: opens the tiers.

        Raises:
            ConfigError: workers do not fit together, or a tier cannot be used.
            CapacityError: the memory is not there.
        """
        self._own_home.open([each.shape for each in metadata.values()], running_system())

    def on_new_request(self, request: Foreign) -> None:
        """A request waits from now on."""
        if (front := self._own_home.front()) is not None:
            front.arrived(request)

    def get_num_new_matched_tokens(self, request: Foreign, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens to load behind those that vLLM has; None: ask again."""
        front = self._own_home.front()
        return (0, False) if front is None else front.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Foreign, blocks: Foreign, num_external_tokens: int) -> None:
        """A request was given blocks."""
        if (front := self._own_home.front()) is not None:
            front.allocated(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(self, request: Foreign, num_external_tokens: int) -> dict[CacheHitSource, int]:
        """Where loaded tokens come from, in vLLM's words."""
        front, found = self._own_home.front(), dict[CacheHitSource, int]()
        tiers = {} if front is None else front.sources(request, num_external_tokens)
        kinds = self._own_home.tier_kinds()
        for tier, tokens in tiers.items():
            source = _SOURCES.get(kinds.get(tier, ""), CacheHitSource.EXTERNAL_UNSPECIFIED)
            found[source] = found.get(source, 0) + tokens
        if sum(found.values()) == num_external_tokens:
            return found
        return {CacheHitSource.EXTERNAL_UNSPECIFIED: num_external_tokens} if num_external_tokens else {}

    def build_connector_meta(self, scheduler_output: Foreign) -> KvistOrders:
        """What the workers do with the step that was just scheduled."""
        front = self._own_home.front_if_made
        return KvistOrders(StepOrders() if front is None else front.step(scheduler_output))

    def update_connector_output(self, connector_output: Foreign) -> None:
        """A step has ended."""
        if (front := self._own_home.front_if_made) is not None:
            meta = connector_output.kv_connector_worker_meta
            report = None if meta is None else meta.report
            front.reported(report, finished_loads(connector_output), finished_frees(connector_output))

    def request_finished_all_groups(
        self, request: Foreign, block_ids: tuple[Sequence[int], ...]
    ) -> tuple[bool, dict[str, object] | None]:
        """A request has ended; whether its blocks must stay for now."""
        front = self._own_home.front_if_made
        return front is not None and front.finished(request, block_ids), None

    def has_pending_block_frees(self) -> bool:
        """Whether blocks will be free soon, so that vLLM need not take some from a running request."""
        front = self._own_home.front_if_made
        return front is not None and front.relieve()

    def bind_gpu_block_pool(self, gpu_block_pool: Foreign) -> None:
        """What vLLM itself has cached."""
        self._own_home.bind(gpu_block_pool)

    def reset_cache(self) -> bool:
        """Nothing that was stored before, here or elsewhere, is found any more."""
        self._own_home.reset()
        return True

    @property
    def _own_home(self) -> Home:
        assert self._home is not None, "this is a worker"
        return self._home

    # ---- figures, and the end

    def get_kv_connector_stats(self) -> KvistStats | None:
        """What has happened since the last packet; None: nothing, or it was just sent."""
        now_s = self._clock.now_s()
        if self._home is None or now_s < self._figures_s or (figures := self._home.figures()) is None:
            return None
        self._figures_s = now_s + _FIGURES_S
        packet = self._interval.packet(figures)
        return KvistStats(data=packet) if packet else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvistStats:
        """A packet that has come from the scheduler's process."""
        return KvistStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Foreign,
        metric_types: Mapping[type, type],
        labelnames: Sequence[str],
        per_engine_labelvalues: Mapping[int, Sequence[object]],
    ) -> KvistProm:
        """Kvist's metrics beside vLLM's."""
        return KvistProm(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Ends this side; may be repeated."""
        if self._worker is not None:
            self._worker.close()
        if self._home is not None:
            self._home.close()
