"""Kvist's figures in vLLM's own metrics and log: the classes that vLLM asks a connector for."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvist.connectors.vllm.statistics import METRICS, Metric, added, sample_of, summary

Foreign: TypeAlias = Any
"""An object of vLLM's, whose types are not known here."""


class KvistStats(KVConnectorStats):
    """One packet of figures on its way through vLLM's processes."""

    def reset(self) -> None:
        """Empties it."""
        self.data: dict[str, float] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Takes in a later packet."""
        self.data = added(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """What the log says of an interval."""
        return summary(self.data)

    def is_empty(self) -> bool:
        """Whether nothing has happened."""
        return not self.data


class KvistProm(KVConnectorPromMetrics):
    """Kvist's metrics, registered beside vLLM's, with its labels before ours."""

    def __init__(
        self,
        vllm_config: Foreign,
        metric_types: Mapping[type, type],
        labelnames: Sequence[str],
        per_engine_labelvalues: Mapping[int, Sequence[object]],
    ) -> None:
        """Registers all of them.

        Args:
            vllm_config: of the engine.
            metric_types: the classes that vLLM uses for counters and gauges.
            labelnames: that every metric of vLLM's has.
            per_engine_labelvalues: their values, by number of the engine.
        """
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics = {name: self._registered(name, metric) for name, metric in METRICS.items()}

    def observe(self, transfer_stats_data: Mapping[str, object], engine_idx: int = 0) -> None:
        """Takes in a packet of one engine; what is not understood is left out."""
        own = self.per_engine_labelvalues.get(engine_idx)
        if own is None:
            return
        for key, value in transfer_stats_data.items():
            sample = sample_of(key, value)
            if sample is None:
                continue
            metric = self._metrics[sample.name].labels(*own, *sample.labels)
            if METRICS[sample.name].kind == "counter":
                metric.inc(max(0.0, sample.value))
            else:
                metric.set(sample.value)

    def _registered(self, name: str, metric: Metric) -> Foreign:
        labels = [*self._labelnames, *metric.labels]
        if metric.kind == "counter":
            return self._counter_cls(name=name, documentation=metric.documentation, labelnames=labels)
        return self._gauge_cls(
            name=name, documentation=metric.documentation, labelnames=labels, multiprocess_mode="mostrecent"
        )
