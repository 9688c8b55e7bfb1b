"""What Prometheus reads: latencies seen here, HTTP answers, and the engine's own counters at the time of the reading.

Knows names and units; counts nothing twice: what the engine counts is read from its snapshot, so those counters
restart with the engine and never drift from `statistics()`.
"""

from collections.abc import Iterator
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvist.engine.messages import EngineStatistics
from kvist.server.errors import FAULT, ApiError
from kvist.server.lifecycle import Lifecycle
from kvist.server.ports import Engine
from kvist.server.settings import MemoryCard
from kvist.server.tier_metrics import cached_tokens, fabric_metrics

FIRST_TOKEN_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0)
INTER_TOKEN_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

EVENTS = {
    "steps": "Steps of the engine.",
    "preemptions": "Running sequences that lost their blocks to others.",
    "aborts": "Sequences that nobody wanted any more: the client left, another choice failed, or a drain was over.",
    "finished": "Sequences that came to their end.",
    "failures": "Sequences that the engine could not carry through.",
    "out_of_memory": "Times that memory ran out in the backend.",
    "evictions": "Cached blocks given up for new ones.",
    "evicted_without_copy": "Of these, blocks that no tier had a copy of.",
    "loads": "Sequences that began with what was loaded for them.",
    "loads_failed": "Sequences whose load failed or was late, and which were computed after all.",
    "stores_dropped": "Blocks that were to be stored in tiers and were let go of before there was room.",
}
"""Fields of `EngineStatistics` that are plain counts of events."""


class Metrics:
    """The metrics of one app, in a registry of its own."""

    def __init__(self, engine: Engine, lifecycle: Lifecycle, memory: MemoryCard | None = None) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine, lifecycle, memory))
        self.first_token = Histogram(
            "kvist_time_to_first_token_seconds",
            "From the arrival of a request to the first token of each of its sequences.",
            buckets=FIRST_TOKEN_S,
            registry=self._registry,
        )
        self.inter_token = Histogram(
            "kvist_inter_token_latency_seconds",
            "Between two tokens of one sequence.",
            buckets=INTER_TOKEN_S,
            registry=self._registry,
        )
        self.refusals = Counter(
            "kvist_refusals",
            "Generation requests that were not honoured, by the error's code.",
            ("code",),
            registry=self._registry,
        )
        self.responses = Counter(
            "kvist_http_responses",
            "Answers by route and status code.",
            ("route", "status"),
            registry=self._registry,
        )

    def count_refusal(self, error: ApiError) -> None:
        """Counts a request that was not honoured; a failure of ours is none."""
        if error.family is not FAULT:
            self.refusals.labels(error.code or "invalid_request").inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Reads the engine's snapshot once per reading."""

    def __init__(self, engine: Engine, lifecycle: Lifecycle, memory: MemoryCard | None) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        statistics = self._engine.statistics()
        yield _tokens(statistics)
        yield _blocks(statistics)
        yield cached_tokens(statistics)
        if self._memory is not None:
            yield from _memory(self._memory)
        if statistics.fabric is not None:
            yield from fabric_metrics(statistics.fabric)
        for name, meaning in EVENTS.items():
            yield CounterMetricFamily(f"kvist_{name}", meaning, value=getattr(statistics, name))
        yield GaugeMetricFamily("kvist_requests_running", "Sequences admitted and not ended.", statistics.running)
        yield GaugeMetricFamily("kvist_requests_loading", "Sequences whose beginning is loaded.", statistics.loading)
        yield GaugeMetricFamily("kvist_requests_waiting", "Sequences not admitted yet.", statistics.waiting)
        yield GaugeMetricFamily("kvist_kv_bytes", "Size of the block pool.", statistics.kv_bytes)
        yield GaugeMetricFamily("kvist_kv_bytes_per_token", "KV of one token.", statistics.kv_bytes_per_token)
        yield GaugeMetricFamily("kvist_http_requests_running", "Requests being answered.", self._lifecycle.running)
        yield GaugeMetricFamily("kvist_ready", "1 while requests are answered.", int(self._is_ready()))

    def _is_ready(self) -> bool:
        return self._lifecycle.is_accepting and self._engine.fault is None


def _tokens(statistics: EngineStatistics) -> Metric:
    family = CounterMetricFamily("kvist_tokens", "Tokens by where they came from.", labels=("source",))
    family.add_metric(("cache",), statistics.tokens_prompt_cached)
    family.add_metric(("computed",), statistics.tokens_prompt_computed)
    family.add_metric(("recomputed",), statistics.tokens_recomputed)
    family.add_metric(("output",), statistics.tokens_output)
    return family


def _blocks(statistics: EngineStatistics) -> Metric:
    family = GaugeMetricFamily("kvist_kv_blocks", "Blocks of each KV group by state.", labels=("group", "state"))
    for group, counts in enumerate(statistics.blocks):
        family.add_metric((str(group), "used"), counts.used)
        family.add_metric((str(group), "cached"), counts.cached)
        family.add_metric((str(group), "free"), counts.free)
    return family


def _memory(card: MemoryCard) -> Iterator[Metric]:
    """What was fixed at start: two sizes, and the settings from which the blocks follow."""
    yield GaugeMetricFamily("kvist_weights_bytes", "Bytes of all parameters.", card.weights_bytes)
    yield GaugeMetricFamily("kvist_workspace_bytes", "Most that a full step took at start.", card.workspace_bytes)
    sizes = ("weights_bytes", "workspace_bytes")
    settings = {name: str(value) for name, value in asdict(card).items() if name not in sizes}
    family = GaugeMetricFamily("kvist_config_info", "Settings of the KV memory, as labels.", labels=tuple(settings))
    family.add_metric(tuple(settings.values()), 1)
    yield family


class CountResponses:
    """ASGI middleware that counts answers by route and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on and looks at how each response starts."""

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Unknown paths share one label: clients choose those, and each label is kept for good.
                route = getattr(scope.get("route"), "path", "unmatched")
                self._metrics.responses.labels(route, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counting)
