"""From what vLLM and its workers say of themselves to a scheduler's side that stands on open tiers."""

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from kvist.app.adapters import Adapters
from kvist.app.connector_config import ConnectorConfig
from kvist.app.fabric import OpenFabric, Stored, opened_fabric, share_interpreter
from kvist.app.memory import bytes_free
from kvist.app.progress import Progress
from kvist.app.secret import load_secret, secret_path
from kvist.app.vllm_sizes import default_staging, expected_prefill
from kvist.app.vllm_weights import provenance_of
from kvist.base.errors import ConfigError, KvistError
from kvist.base.units import Tokens, format_bytes
from kvist.blocks.keys import namespace_of
from kvist.blocks.window import Retention
from kvist.connectors.vllm.facts import Records, hash_scheme, kv_facts
from kvist.connectors.vllm.front import Front
from kvist.connectors.vllm.identities import Tenants
from kvist.connectors.vllm.reading import Foreign, OwnCache
from kvist.connectors.vllm.reading_config import Engine
from kvist.connectors.vllm.scheduler import SchedulerSide
from kvist.connectors.vllm.settings import Ports, SchedulerSettings
from kvist.connectors.vllm.shapes import RecordShape, WorkerShape, block_tokens_of, record_shapes
from kvist.connectors.vllm.statistics import Sample, samples

_log = logging.getLogger(__name__)


class Home:
    """The scheduler's side with all that it stands on: opened once the workers are known, closed in the end.

    vLLM makes its hashes' start only after that, and may ask for it with the first request at the earliest.
    """

    def __init__(self, config: ConnectorConfig, engine: Engine, chain_start: Callable[[], bytes]) -> None:
        """Remembers what to open.

        Args:
            config: checked settings.
            engine: what vLLM says of itself.
            chain_start: what vLLM's hashes start from; asked for with the first request.
        """
        self._config = config
        self._engine = engine
        self._chain_start = chain_start
        self._stack = ExitStack()
        self._front: Front | None = None
        self._shapes: tuple[RecordShape, ...] = ()
        self._facts: Mapping[str, str] = {}
        self._open: OpenFabric | None = None
        self._workers: tuple[WorkerShape, ...] = ()
        self._secret = b""
        self._is_lost = False
        self._own_cache: OwnCache | None = None

    def open(self, workers: Sequence[WorkerShape], machine: str) -> None:
        """Opens the tiers, the first time; an engine that has slept tells of its workers again when it wakes up.

        Args:
            workers: what each says of itself.
            machine: the running system of this process.

        Raises:
            ConfigError: something does not fit together, or a tier cannot be used.
            CapacityError: the memory is not there.
        """
        if self._open is not None:
            self._met_again(workers)
            return
        self._workers = tuple(sorted(workers, key=_rank))
        if strange := {worker.machine for worker in workers} - {machine}:
            raise ConfigError(
                f"workers run on another system ({', '.join(sorted(strange))}) than the scheduler ({machine}); "
                "Kvist needs them on one machine and in one container: they meet in shared memory"
            )
        self._secret = load_secret(secret_path(self._config.cache_secret_file, os.environ))
        groups = [each.group for each in self._engine.groups]
        self._shapes = record_shapes(groups, workers)
        forms = tuple(shape.form for shape in self._shapes)
        block_tokens = block_tokens_of(groups)
        config = self._config
        whence = provenance_of(self._engine, config, _report)
        records = Records(
            packing=workers[0].packing, block_tokens=block_tokens, forms=forms, layers=layers_of(workers, len(groups))
        )
        self._facts = kv_facts(self._engine.facts, whence, records)
        if config.staging_memory is None:
            size = default_staging(forms, block_tokens, self._engine.setup.batch_tokens, bytes_free())
            config = config.model_copy(update={"staging_memory": size})
        stored = Stored(
            namespace=namespace_of(self._facts),
            block_tokens=block_tokens,
            windows=tuple(group.window for group in groups),
            forms=forms,
            prefill=expected_prefill(self._engine),
        )
        self._open = self._stack.enter_context(opened_fabric(config, stored, _report))
        share_interpreter()
        tiers = ", ".join(spec.name for spec in config.tiers)
        _log.info("tiers %s are open; staging of %s", tiers, format_bytes(config.staging_memory or 0))

    def bind(self, pool: Foreign) -> None:
        """Remembers where vLLM caches blocks itself."""
        self._own_cache = OwnCache(pool)

    def front(self) -> Front | None:
        """The scheduler's side, made with the first request; None: it could not be made, and vLLM goes on without."""
        if self._front is None and not self._is_lost:
            try:
                self._front = self._made()
            except Exception as error:  # noqa: BLE001  whatever it is, vLLM must go on: this is called by its scheduler
                self._is_lost = True
                is_told = isinstance(error, KvistError | AttributeError)
                _log.error("the KV cache is not used: %s", error, exc_info=None if is_told else error)
        return self._front

    @property
    def front_if_made(self) -> Front | None:
        """The scheduler's side, if there was a request."""
        return self._front

    def figures(self) -> Iterator[Sample] | None:
        """Everything worth showing; None: there was no request yet."""
        if self._front is not None:
            return samples(self._front.statistics(), is_detached=self._front.is_detached)
        return samples(None, is_detached=True) if self._is_lost else None

    def tier_kinds(self) -> Mapping[str, str]:
        """The kind of each tier, by name."""
        return {spec.name: spec.kind for spec in self._config.tiers}

    def reset(self) -> None:
        """Goes on in a namespace that nobody ever had: nothing stored before, here or elsewhere, is found in it."""
        if self._own_cache is not None:
            self._own_cache.note_reset()
        self._facts = {**self._facts, "epoch": secrets.token_hex(16)}
        namespace = namespace_of(self._facts)
        if self._front is not None:
            self._front.reset(namespace)
        elif self._open is not None:
            self._open.fabric.renew(namespace)

    def close(self) -> None:
        """Ends the side, and then what it stands on; may be repeated."""
        if self._front is not None:
            self._front.close()
        self._stack.close()

    def _is_clean(self) -> bool:
        return self._own_cache is None or self._own_cache.is_clean()

    def _met_again(self, workers: Sequence[WorkerShape]) -> None:
        if tuple(sorted(workers, key=_rank)) == self._workers:
            return
        # Nothing is raised: whoever wakes up would not go on.
        self._is_lost = True
        text = "vLLM's workers are others than at the start"
        if self._front is None:
            _log.error("the KV cache is not used: %s", text)
        else:
            self._front.detach(text)

    def _made(self) -> Front:
        if self._open is None:
            raise ConfigError("vLLM has not said which workers there are, so there is no KV to load or to store")
        engine, config = self._engine, self._config
        groups = tuple(each.group for each in engine.groups)
        settings = SchedulerSettings(
            groups=groups,
            shapes=self._shapes,
            hash_tokens=Tokens(engine.facts.hash_tokens),
            block_tokens=block_tokens_of(groups),
            retention=Retention(checkpoint_tokens=Tokens(config.window_checkpoint_tokens)),
            offload_prompt_only=config.offload_prompt_only,
            workers=len(self._workers),
            pool_blocks=engine.setup.pool_blocks,
            steps_overlap=engine.setup.steps_overlap,
        )
        adapters = Adapters(engine.setup.adapters)
        ports = Ports(
            clock=self._open.clock,
            tenants=Tenants(self._secret),
            scheme=hash_scheme(engine.facts, self._chain_start()),
            adapter_digest=lambda adapter: adapters.digest(adapter.name, adapter.path),
            is_clean=self._is_clean,
            handles=self._open.handles(),
        )
        side = SchedulerSide(self._open.fabric, settings, ports)
        return Front(side, block_tokens=groups[0].block_tokens, groups=engine.groups_in_all)


def _rank(worker: WorkerShape) -> tuple[int, int]:
    return worker.pipeline_rank, worker.tensor_rank


def layers_of(workers: Sequence[WorkerShape], groups: int) -> tuple[tuple[str, ...], ...]:
    """Names of layers by group, in the order of a record: those of the first pipeline rank come first."""
    stages = sorted((each for each in workers if each.tensor_rank == 0), key=lambda each: each.pipeline_rank)
    return tuple(tuple(name for worker in stages for name in worker.groups[group].layers) for group in range(groups))


def _report(progress: Progress) -> None:
    _log.info("%s", progress.stage)
