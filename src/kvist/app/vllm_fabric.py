"""From what vLLM and its workers say of themselves to a scheduler's side that stands on open tiers."""

import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from kvist.app.adapters import Adapters
from kvist.app.connector_config import ConnectorConfig
from kvist.app.fabric import STAGING_RECORDS_MIN, OpenFabric, Stored, opened_fabric
from kvist.app.memory import bytes_free
from kvist.app.progress import Progress
from kvist.app.secret import load_secret, secret_path
from kvist.app.vllm_weights import identified_weights, weight_files
from kvist.base.errors import ConfigError, KvistError
from kvist.base.units import Tokens, format_bytes
from kvist.blocks.form import Form
from kvist.blocks.keys import namespace_of
from kvist.blocks.window import Retention
from kvist.connectors.vllm.facts import EngineFacts, Provenance, hash_scheme, kv_facts
from kvist.connectors.vllm.front import Front
from kvist.connectors.vllm.identities import Tenants
from kvist.connectors.vllm.reading_config import EngineSetup, ReadGroup
from kvist.connectors.vllm.scheduler import SchedulerSide
from kvist.connectors.vllm.settings import Ports, SchedulerSettings
from kvist.connectors.vllm.shapes import RecordShape, WorkerShape, block_tokens_of, record_shapes
from kvist.cost.prefill import PrefillModel, Work, prefill_model

_log = logging.getLogger(__name__)

_STAGING_MIN, _STAGING_MAX = 64 * 2**20, 2**30
_STAGING_STEPS = 4
"""Staging holds the KV of so many full steps, unless the operator says otherwise."""

_OPERATIONS_PER_S: Mapping[str, float] = {"cpu": 1e11, "cuda": 1e14}
"""Of a device, roughly; what is learned replaces it."""

_PARAMETERS = 10**9
"""Of a model whose files are not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What vLLM says of itself: facts of its KV, what it was told, its groups, and how many there are in all."""

    facts: EngineFacts
    setup: EngineSetup
    groups: tuple[ReadGroup, ...]
    groups_in_all: int


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
        self._workers = 0
        self._secret = b""
        self._is_lost = False

    def open(self, workers: Sequence[WorkerShape], machine: str) -> None:
        """Opens the tiers.

        Args:
            workers: what each says of itself.
            machine: the running system of this process.

        Raises:
            ConfigError: something does not fit together, or a tier cannot be used.
            CapacityError: the memory is not there.
        """
        self._workers = len(workers)
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
        self._facts = kv_facts(self._engine.facts, self._provenance(), workers[0].packing, forms, block_tokens)
        config = self._config
        if config.staging_memory is None:
            size = default_staging(forms, block_tokens, self._engine.setup.batch_tokens, bytes_free())
            config = config.model_copy(update={"staging_memory": size})
        stored = Stored(
            namespace=namespace_of(self._facts),
            block_tokens=block_tokens,
            windows=tuple(group.window for group in groups),
            forms=forms,
            prefill=self._prefill(),
        )
        self._open = self._stack.enter_context(opened_fabric(config, stored, _report))
        tiers = ", ".join(spec.name for spec in config.tiers)
        _log.info("tiers %s are open; staging of %s", tiers, format_bytes(config.staging_memory or 0))

    def front(self) -> Front | None:
        """The scheduler's side, made with the first request; None: it could not be made, and vLLM goes on without."""
        if self._front is None and not self._is_lost:
            try:
                self._front = self._made()
            except (KvistError, AttributeError) as error:
                self._is_lost = True
                _log.error("the KV cache is not used: %s", error)
        return self._front

    @property
    def front_if_made(self) -> Front | None:
        """The scheduler's side, if there was a request."""
        return self._front

    def tier_kinds(self) -> Mapping[str, str]:
        """The kind of each tier, by name."""
        return {spec.name: spec.kind for spec in self._config.tiers}

    def reset(self) -> None:
        """Goes on in a namespace that nobody ever had: nothing stored before, here or elsewhere, is found in it."""
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
            workers=self._workers,
            pool_blocks=engine.setup.pool_blocks,
            steps_overlap=engine.setup.steps_overlap,
        )
        adapters = Adapters()
        ports = Ports(
            clock=self._open.clock,
            tenants=Tenants(self._secret),
            scheme=hash_scheme(engine.facts, self._chain_start()),
            adapter_digest=lambda adapter: adapters.digest(adapter.name, adapter.path),
            handles=self._open.handles(),
        )
        side = SchedulerSide(self._open.fabric, settings, ports)
        return Front(side, block_tokens=groups[0].block_tokens, groups=engine.groups_in_all)

    def _provenance(self) -> Provenance:
        setup, config = self._engine.setup, self._config
        process = secrets.token_hex(16)
        if setup.load_format == "dummy":
            weights = process
            _log.warning("the weights are random, so what is stored is of use to this process alone")
        elif config.weights_revision is not None:
            weights = f"revision {config.weights_revision}"
        else:
            weights = identified_weights(setup.model, setup.revision, _report)
        draft = setup.draft_model
        draft_weights = ""
        if draft is not None and config.weights_revision is None and setup.load_format != "dummy":
            draft_weights = weights if draft == setup.model else identified_weights(draft, None, _report)
        if self._engine.facts.computed_scales:
            _log.warning(
                "scales of the KV come from what is served first: what is stored is of use to this process alone"
            )
        return Provenance(weights=weights, draft_weights=draft_weights, epoch=config.weights_epoch, process=process)

    def _prefill(self) -> PrefillModel:
        setup = self._engine.setup
        try:
            parameters = sum(path.stat().st_size for path in weight_files(setup.model, setup.revision)) // 2
        except (ConfigError, OSError):
            parameters = _PARAMETERS
        work = Work(
            parameters=parameters,
            attention_width=attention_width(self._engine),
            operations_per_s=_OPERATIONS_PER_S.get(setup.device, 1e12),
        )
        return prefill_model(work, step_tokens=Tokens(setup.batch_tokens))


def default_staging(forms: Sequence[Form], block_tokens: int, batch_tokens: int, free_bytes: int) -> int:
    """Bytes of staging where the operator gives none: a few full steps, within what the machine can spare."""
    token_bytes = sum(form.record_bytes for form in forms) / block_tokens
    wanted = min(max(int(_STAGING_STEPS * batch_tokens * token_bytes), _STAGING_MIN), _STAGING_MAX)
    least = STAGING_RECORDS_MIN * sum(form.record_bytes for form in forms)
    return max(min(wanted, free_bytes // 4), least, 2**20)


def attention_width(engine: Engine) -> int:
    """About as wide as the query heads of all layers that see every position; from the hidden size, as most models."""
    text = engine.facts.model.get("text_config", engine.facts.model)
    hidden = text.get("hidden_size") if isinstance(text, Mapping) else None
    layers = sum(len(each.group.layers) for each in engine.groups if each.group.window is None)
    return layers * (hidden if isinstance(hidden, int) and hidden > 0 else 1024)


def _report(progress: Progress) -> None:
    _log.info("%s", progress.stage)
