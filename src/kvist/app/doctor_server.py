"""What a running vLLM says of itself at /version, /metrics and /v1/models: its settings, and whether anything is found.

The only questions are three GETs.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from kvist.app.doctor_findings import Finding, note, ok, problem, shown
from kvist.app.probe import replies
from kvist.base.errors import WireError
from kvist.lab.client import parse_url

CHECK = "server"
_VERSION, _METRICS, _MODELS = "/version", "/metrics", "/v1/models"
_SETTINGS = "vllm:cache_config_info"
_OURS = "kvist_"
_DETACHED = "kvist_connector_detached"
_BREAKER = "kvist_tier_breaker"
_BYPASSED = "kvist_requests_bypassed_total"
_STORED = "kvist_stores_total"
_LOOKED_FOR = "vllm:prefix_cache_queries_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A vLLM that answers.

    Attributes:
        url: where.
        version: as it says.
        settings: of its KV cache, by the names of vLLM's configuration, as text; empty where it shows none.
        values: of metrics, summed over their labels.
        breakers_open: tiers that are left alone because they failed.
        model: the path or name that the model was loaded by; None: not told.
        tokens_max: prompt plus output that it takes; None: not told.
    """

    url: str
    version: str
    settings: Mapping[str, str]
    values: Mapping[str, float]
    breakers_open: tuple[str, ...] = ()
    model: str | None = None
    tokens_max: int | None = None


def ask_server(text: str) -> Running:
    """Asks a running vLLM.

    Args:
        text: its base URL.

    Raises:
        ConfigError: it is no URL.
        WireError: nobody answers there, or no vLLM does.
    """
    url = parse_url(text)
    found = replies(url, (_VERSION, _METRICS, _MODELS))
    version = found[_VERSION].fields().get("version")
    if not isinstance(version, str):
        raise WireError(f"what answers at {url} gives no version, and so is no vLLM")
    shown_there = read_metrics(found[_METRICS].content().decode("utf-8", "replace"), url)
    try:
        models = found[_MODELS].fields().get("data")
    except WireError:
        models = None  # it wants a key, which nothing else here needs
    first = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
    model, tokens = first.get("root"), first.get("max_model_len")
    return Running(
        url=url,
        version=version,
        settings=shown_there.settings,
        values=shown_there.values,
        breakers_open=shown_there.breakers_open,
        model=model if isinstance(model, str) else None,
        tokens_max=tokens if isinstance(tokens, int) and tokens > 0 else None,
    )


class Metrics(NamedTuple):
    """What /metrics shows, as in `Running`."""

    settings: Mapping[str, str]
    values: Mapping[str, float]
    breakers_open: tuple[str, ...]


def read_metrics(text: str, url: str) -> Metrics:
    """Reads what /metrics answered.

    Raises:
        WireError: it is nothing that Prometheus would read.
    """
    settings: dict[str, str] = {}
    values: dict[str, float] = defaultdict(float)
    breakers: list[str] = []
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _SETTINGS:
                    settings |= sample.labels
                elif not sample.name.endswith("_created"):
                    values[sample.name] += sample.value
                if sample.name == _BREAKER and sample.labels.get("state") == "open" and sample.value:
                    breakers.append(sample.labels.get("tier", "?"))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise WireError(f"{url}/metrics cannot be read ({error}); is it a vLLM?") from error
    return Metrics(settings, values, tuple(breakers))


def server_findings(running: Running) -> Iterator[Finding]:
    """What to think of a running vLLM."""
    yield ok(CHECK, f"vLLM {running.version} answers at {running.url}")
    if running.settings.get("enable_prefix_caching") == "False":
        text = "prefix caching is off, so vLLM makes no hashes and asks no connector"
        yield problem(CHECK, text, "start vLLM without --no-enable-prefix-caching")
    if not any(name.startswith(_OURS) for name in running.values):
        yield _unconnected(running.values)
    elif running.values.get(_DETACHED, 0.0) > 0:
        text = "the connector gave up after an error of its own: nothing is stored or loaded any more"
        yield problem(CHECK, text, "look for that error in vLLM's log, report it, and start vLLM again")
    for tier in running.breakers_open:
        yield note(CHECK, f"tier {shown(tier)} has failed and is left alone for now", "look at that tier")
    if bypassed := running.values.get(_BYPASSED, 0.0):
        text = (
            f"{bypassed:,.0f} requests went past the cache: the files of their adapters are not here, or have changed"
        )
        yield note(CHECK, text, "load adapters from local directories, and changed ones under another name")
    yield from _hits(running.values)


def _unconnected(values: Mapping[str, float]) -> Finding:
    """Before the first request nobody knows: nothing is counted yet."""
    if values.get(_LOOKED_FOR):
        text = "it has had requests and shows no metric of Kvist's, so it runs without the connector"
        return problem(CHECK, text, "start it with --kv-transfer-config")
    text = "it has had no request yet, and shows only after one whether it runs with the connector"
    return note(CHECK, text, "send a request, and look again")


def _hits(values: Mapping[str, float]) -> Iterator[Finding]:
    asked = values.get("vllm:external_prefix_cache_queries_total", 0.0)
    found = values.get("vllm:external_prefix_cache_hits_total", 0.0)
    own = values.get("vllm:prefix_cache_hits_total", 0.0)
    if not asked:
        yield note(CHECK, "no prompt has been looked for in the tiers yet", "send requests, and look again")
    elif not found:
        text = f"of {asked:,.0f} tokens looked for in the tiers none was found, and {own:,.0f} in vLLM's own memory"
        if not values.get(_STORED):
            text += "; and no block has been stored"
        yield note(CHECK, text, "if prompts do repeat, see the problems and notes here; else nothing is wrong")
    else:
        yield ok(CHECK, f"of {asked:,.0f} tokens looked for in the tiers {found:,.0f} were found")
