"""What a running server says of its KV memory: a vLLM by the labels of one metric, Kvist's own by metrics of its own.

Knows names and where they are; `kvist.app.plan_check` compares.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kvist.app.foreign_figures import Figures
from kvist.app.probe import Reply, replies
from kvist.base.errors import WireError
from kvist.base.units import Bytes, Tokens
from kvist.lab.client import parse_url
from kvist.lab.failure import excerpt
from kvist.planner.memory import Rules

_VERSION, _METRICS, _MODELS = "/version", "/metrics", "/v1/models"

_VLLM = "vllm:cache_config_info"
_KVIST = "kvist_config_info"
_BLOCKS = "kvist_kv_blocks"
_SIZES = ("kvist_kv_bytes", "kvist_kv_bytes_per_token", "kvist_weights_bytes", "kvist_workspace_bytes")
_READ = (_VLLM, _KVIST, _BLOCKS, *_SIZES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What a server says; None: it says nothing of that.

    Attributes:
        url: where.
        rules: whose rules of blocks it has.
        version: of the engine.
        tokens_max: longest request that it takes.
        dtype: of keys and values, as `--kv-cache-dtype` calls it; "auto": the model's own.
        blocks: of each pool, of one engine.
        block_tokens: tokens per block.
        engines: how many share the address; what is said here is of one.
        tokens: what the engine calls the tokens of its KV memory.
        concurrency: requests of the longest length at once, as vLLM counts them.
        kv_bytes: for KV, as vLLM was told, or as Kvist has them.
        utilisation: of memory, as vLLM was told.
        blocks_given: blocks that vLLM was told to make, whatever the memory.
        prefix_caching: whether prefixes are kept.
        step_tokens, sequences_max, model_tokens_max, window_checkpoint_tokens: as Kvist was started.
        bytes_per_token, weights_bytes, workspace_bytes: of Kvist, the last two as measured.
    """

    url: str
    rules: Rules
    version: str | None
    tokens_max: Tokens | None
    dtype: str
    blocks: tuple[int, ...]
    block_tokens: int
    engines: int = 1
    tokens: Tokens | None = None
    concurrency: float | None = None
    kv_bytes: Bytes | None = None
    utilisation: float | None = None
    blocks_given: int | None = None
    prefix_caching: bool | None = None
    step_tokens: int | None = None
    sequences_max: int | None = None
    model_tokens_max: Tokens | None = None
    window_checkpoint_tokens: Tokens | None = None
    bytes_per_token: Bytes | None = None
    weights_bytes: Bytes | None = None
    workspace_bytes: Bytes | None = None


def ask_reported(text: str) -> Reported:
    """Asks a running server.

    Args:
        text: its base URL.

    Raises:
        ConfigError: it is no URL.
        WireError: nobody answers there, it is no server of the two kinds, or it says what cannot be.
    """
    url = parse_url(text)
    found = replies(url, (_METRICS, _VERSION, _MODELS))
    metrics = found[_METRICS].content().decode("utf-8", "replace")
    version, models = (_field(found[path], name) for path, name in ((_VERSION, "version"), (_MODELS, "data")))
    first = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
    return read_reported(
        metrics,
        url,
        version=version if isinstance(version, str) else None,
        tokens_max=Figures(first, f"{url}{_MODELS}").whole("max_model_len"),
    )


def read_reported(text: str, url: str, *, version: str | None = None, tokens_max: int | None = None) -> Reported:
    """Reads what /metrics answered.

    Args:
        text: of it.
        url: of the server.
        version: of the engine; it is said elsewhere.
        tokens_max: longest request that it takes; likewise.

    Raises:
        WireError: it is nothing that Prometheus would read, or says what cannot be.
    """
    samples = _samples(text, url)
    longest = None if tokens_max is None else Tokens(tokens_max)
    if samples[_VLLM]:
        return replace(_of_vllm(samples[_VLLM], url), version=version, tokens_max=longest)
    if samples[_KVIST]:
        return replace(_of_kvist(samples, url), version=version, tokens_max=longest)
    if samples[_BLOCKS]:
        raise WireError(f"{url}{_METRICS} shows no {_KVIST}: that server is of an older release of Kvist")
    raise WireError(
        f"{url}{_METRICS} shows neither {_VLLM} nor {_KVIST}: what answers there is no vLLM and no server of Kvist's"
    )


def _field(reply: Reply, name: str) -> object:
    """A field of an answer that may be withheld: without a key, or by servers that have no such path."""
    try:
        return reply.fields().get(name)
    except WireError:
        return None


def _samples(text: str, url: str) -> Mapping[str, list[Sample]]:
    """Samples by name, of the metrics that matter: others may be many."""
    lines = [line for line in text.splitlines() if line.startswith(_READ)]
    samples: dict[str, list[Sample]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families("\n".join([*lines, ""])):
            for sample in family.samples:
                samples[sample.name].append(sample)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise WireError(f"{url}{_METRICS} cannot be read: {excerpt(str(error), 80)}") from error
    return samples


def _of_vllm(samples: Sequence[Sample], url: str) -> Reported:
    """From the settings of vLLM's KV cache: each of several engines shows the same, with the blocks of all of them."""
    figures = Figures(samples[0].labels, f"{url}{_METRICS}: {_VLLM}")
    engines = len({sample.labels.get("engine") for sample in samples})
    tokens, kv_bytes = figures.whole("kv_cache_size_tokens"), figures.whole("kv_cache_memory_bytes")
    return Reported(
        url=url,
        rules="vllm",
        version=None,
        tokens_max=None,
        dtype=figures.text("cache_dtype"),
        blocks=(figures.needed("num_gpu_blocks") // engines,),
        block_tokens=figures.needed("block_size"),
        engines=engines,
        tokens=None if tokens is None else Tokens(tokens),
        concurrency=figures.fraction("kv_cache_max_concurrency"),
        kv_bytes=None if kv_bytes is None else Bytes(kv_bytes),
        utilisation=figures.fraction("gpu_memory_utilization"),
        blocks_given=figures.whole("num_gpu_blocks_override"),
        prefix_caching=figures.flag("enable_prefix_caching"),
    )


def _of_kvist(samples: Mapping[str, list[Sample]], url: str) -> Reported:
    """From the settings and sizes of Kvist's own engine."""
    where = f"{url}{_METRICS}"
    settings = Figures(samples[_KVIST][0].labels, f"{where}: {_KVIST}")
    sizes = Figures({name: samples[name][0].value for name in _SIZES if samples[name]}, where)
    blocks = _blocks(samples[_BLOCKS], where)
    block_tokens = settings.needed("block_tokens")
    return Reported(
        url=url,
        rules="kvist",
        version=None,
        tokens_max=None,
        dtype=settings.text("dtype"),
        blocks=blocks,
        block_tokens=block_tokens,
        tokens=Tokens(blocks[0] * block_tokens),
        kv_bytes=Bytes(sizes.needed("kvist_kv_bytes")),
        step_tokens=settings.needed("step_tokens"),
        sequences_max=settings.needed("sequences_max"),
        model_tokens_max=Tokens(settings.needed("model_tokens_max")),
        window_checkpoint_tokens=Tokens(settings.needed("window_checkpoint_tokens")),
        bytes_per_token=Bytes(sizes.needed("kvist_kv_bytes_per_token")),
        weights_bytes=Bytes(sizes.needed("kvist_weights_bytes")),
        workspace_bytes=Bytes(sizes.whole("kvist_workspace_bytes", least=0) or 0),
    )


def _blocks(samples: Sequence[Sample], where: str) -> tuple[int, ...]:
    """Blocks of each group, whatever their state."""
    counted: dict[int, int] = defaultdict(int)
    for sample in samples:
        group = Figures(sample.labels, f"{where}: {_BLOCKS}").whole("group", least=0)
        count = Figures({_BLOCKS: sample.value}, where).whole(_BLOCKS, least=0)
        counted[group or 0] += count or 0
    if not counted or sorted(counted) != list(range(len(counted))) or not all(counted.values()):
        raise WireError(f"{where} does not say how many blocks each KV group has ({_BLOCKS})")
    return tuple(counted[group] for group in sorted(counted))
