"""What vLLM was told and found out at its start, as our own values; refused where it cannot be dealt with.

Duck-typed, as `kvist.connectors.vllm.reading`; but here every attribute is looked for with care, so that a release that
lacks one is refused with a name and not with a traceback.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.connectors.vllm.facts import EngineFacts, GroupFacts, config_digest
from kvist.connectors.vllm.shapes import CANONICAL, EngineGroup
from kvist.connectors.vllm.versions import minor_release

_WINDOWED = {"SlidingWindowSpec": "sliding window", "SlidingWindowMLASpec": "sliding window, latent"}
_CHUNKED = {"ChunkedLocalAttentionSpec": "chunked"}
_FULL = {"FullAttentionSpec": "full", "MLAAttentionSpec": "latent"}
_STORED = _WINDOWED | _CHUNKED | _FULL
"""vLLM's kinds of KV cache that can be stored, by the exact class: a class derived from one may mean anything."""

_NO_DRAFT_KV = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Ways to guess tokens without a model."""

_MEDIA = ("mm_processor_kwargs", "mm_encoder_attn_dtype", "mm_encoder_fp8_scale_path", "video_pruning_rate")
"""What is said for all requests of how media become tokens; vLLM's hashes cover what a request says of it."""

_ADAPTERS = ("lora_dtype", "target_modules", "enable_tower_connector_lora", "enable_moe_shared_loras")
"""Which parts of an adapter's files are used, and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadGroup:
    """One of vLLM's groups: what is stored of it, what is known of it, and the bytes of one block of one layer."""

    group: EngineGroup
    facts: GroupFacts
    block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """What vLLM was told and found out at its start, beside the facts about its KV.

    Attributes:
        model, draft_model: names or directories; None: nothing drafts, or without KV of its own.
        revision, draft_revision: of the models on the hub; None: the latest that is here.
        load_format: "dummy": weights are random.
        download_dir: where models of the hub are; None: in its client's cache.
        runs_code: whether code that came with the model may be used.
        adapters: how adapters are applied.
        pool_blocks: blocks of the engine.
        batch_tokens: most tokens computed in one step.
        replicas: so many consecutive tensor ranks hold the same heads.
        workers: processes that hold KV.
        steps_overlap: whether a step is planned before the one before it has ended.
        goes_on: whether vLLM goes on after a step that failed, instead of ending.
        failure_policy: what vLLM does when a load fails.
        role: whether this engine stores, loads, or both.
        extra: what the operator wrote for connectors.
        device: the kind of device that holds the KV.
    """

    model: str
    draft_model: str | None
    revision: str | None
    draft_revision: str | None
    load_format: str
    download_dir: str | None
    runs_code: bool
    adapters: str
    pool_blocks: int
    batch_tokens: int
    replicas: int
    workers: int
    steps_overlap: bool
    goes_on: bool
    failure_policy: str
    role: str
    extra: Mapping[str, object]
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What vLLM says of itself: facts of its KV, what it was told, the groups that are stored, and how many it has."""

    facts: EngineFacts
    setup: EngineSetup
    groups: tuple[ReadGroup, ...]
    groups_in_all: int


def engine_of(release: str, vllm_config: object, kv_cache_config: object) -> Engine:
    """Everything that vLLM says of itself.

    Raises:
        ConfigError: something of it cannot be dealt with.
    """
    groups = groups_of(kv_cache_config)
    return Engine(
        facts=engine_facts(release, vllm_config, kv_cache_config, groups),
        setup=engine_setup(vllm_config, kv_cache_config),
        groups=groups,
        groups_in_all=len(cast("Sequence[object]", _read(kv_cache_config, "kv_cache_groups"))),
    )


def groups_of(kv_cache_config: object) -> tuple[ReadGroup, ...]:
    """The groups that vLLM hands to connectors, in its order.

    Raises:
        ConfigError: one of them is of a kind that cannot be stored, named.
    """
    groups = cast("Iterable[object]", _read(kv_cache_config, "kv_cache_groups"))
    found = [_group(index, group) for index, group in enumerate(groups) if _read(group, "enable_kv_transfer")]
    if not found:
        raise ConfigError("this model has no KV cache that vLLM hands to connectors; run it without Kvist")
    return tuple(found)


def _group(index: int, group: object) -> ReadGroup:
    spec = _read(group, "kv_cache_spec")
    layers = tuple(cast("Iterable[str]", _read(group, "layer_names")))
    specs = _specs(spec)
    kinds = {_kind(index, each) for each in specs}
    if len(kinds) > 1:
        raise ConfigError(
            f"KV cache group {index} mixes {' and '.join(sorted(kinds))} attention; Kvist cannot store it"
        )
    if _read(group, "host_resident"):
        raise ConfigError(f"KV cache group {index} lies in host memory already; run this model without Kvist")
    block_tokens = Tokens(_int(specs[0], "block_size"))
    windows = {_window(each) for each in specs}
    window = None if None in windows else max(each for each in windows if each is not None)
    return ReadGroup(
        group=EngineGroup(index=index, layers=layers, block_tokens=block_tokens, window=_needed(window)),
        facts=GroupFacts(kind=kinds.pop(), window=window, block_tokens=block_tokens),
        block_bytes=_int(specs[0], "unpadded_page_size_bytes"),
    )


def _specs(spec: object) -> list[object]:
    """The specifications of a group's layers, or the one that they share."""
    own = getattr(spec, "kv_cache_specs", None)
    return list(own.values()) if isinstance(own, Mapping) and own else [spec]


def _kind(index: int, spec: object) -> str:
    name = type(spec).__name__
    names = {each.__name__ for each in type(spec).__mro__}
    if "MambaSpec" in names:
        raise ConfigError(
            f"KV cache group {index} holds recurrent state ({name}), which Kvist cannot store; run this model without"
        )
    if name not in _STORED or not _read(spec, "prefix_cacheable") or getattr(spec, "prefix_replay_tokens", None):
        raise ConfigError(
            f"KV cache group {index} is of the kind {name}, which Kvist cannot store; it can: {', '.join(_STORED)}"
        )
    return _STORED[name]


def _window(spec: object) -> int | None:
    """How many tokens a query reads, its own included."""
    name = type(spec).__name__
    if name in _WINDOWED:
        return _int(spec, "sliding_window") + _int(spec, "extra_retained_tokens")
    return _int(spec, "attention_chunk_size") if name in _CHUNKED else None


def _needed(window: int | None) -> Tokens | None:
    """Of those, the ones that lie before the query itself: what a hit needs, and what vLLM keeps for it."""
    return None if window is None else Tokens(max(1, window - 1))


def hash_tokens_of(kv_cache_config: object, groups: Sequence[ReadGroup]) -> int:
    """Tokens per hash of vLLM: what it has resolved, and must divide every group's blocks."""
    tokens = _read(kv_cache_config, "hash_block_size") or min(each.group.block_tokens for each in groups)
    assert isinstance(tokens, int)
    for each in groups:
        if tokens < 1 or each.group.block_tokens % tokens:
            raise ConfigError(f"vLLM hashes every {tokens} tokens, and its blocks have {each.group.block_tokens}")
    return tokens


def engine_facts(
    release: str, vllm_config: object, kv_cache_config: object, groups: Sequence[ReadGroup]
) -> EngineFacts:
    """What vLLM says of the KV it computes.

    Raises:
        ConfigError: something is not where this release should have it.
    """
    model, cache = _read(vllm_config, "model_config"), _read(vllm_config, "cache_config")
    return EngineFacts(
        release=minor_release(release),
        model=_config(model),
        draft=_draft(vllm_config, _config),
        dtype=str(_read(model, "dtype")).removeprefix("torch."),
        kv_dtype=str(_read(cache, "cache_dtype")),
        quantization=_quantization(model),
        draft_quantization=_draft(vllm_config, _quantization),
        position_tokens=_int(model, "max_model_len"),
        hash_algorithm=str(_read(cache, "prefix_caching_hash_algo")),
        hash_tokens=hash_tokens_of(kv_cache_config, groups),
        groups=tuple(each.facts for each in groups),
        media=_digest(_read(model, "multimodal_config"), _MEDIA),
        code_revision=_text(_read(model, "code_revision")) if _read(model, "trust_remote_code") else None,
        computed_scales=bool(getattr(cache, "calculate_kv_scales", False)),
    )


def engine_setup(vllm_config: object, kv_cache_config: object) -> EngineSetup:
    """What vLLM was told.

    Raises:
        ConfigError: tokens of one block are spread over workers, or something is not where this release should have it.
    """
    model, parallel = _read(vllm_config, "model_config"), _read(vllm_config, "parallel_config")
    transfer, load = _read(vllm_config, "kv_transfer_config"), _read(vllm_config, "load_config")
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if (size := _int(parallel, name)) > 1:
            raise ConfigError(f"{name} is {size}: Kvist cannot store blocks whose tokens are spread over workers")
    return EngineSetup(
        model=str(_read(model, "model")),
        draft_model=_draft(vllm_config, lambda draft: str(_read(draft, "model"))),
        revision=_text(_read(model, "revision")),
        draft_revision=_draft(vllm_config, lambda draft: _text(_read(draft, "revision"))),
        load_format=str(_read(load, "load_format")),
        download_dir=_text(_read(load, "download_dir")),
        runs_code=bool(_read(model, "trust_remote_code")),
        adapters=_digest(_read(vllm_config, "lora_config"), _ADAPTERS),
        pool_blocks=_int(kv_cache_config, "num_blocks"),
        batch_tokens=_int(_read(vllm_config, "scheduler_config"), "max_num_batched_tokens"),
        replicas=_int(kv_cache_config, "kv_tp_replicas"),
        workers=_int(parallel, "world_size"),
        steps_overlap=_int(vllm_config, "max_concurrent_batches") > 1,
        goes_on=bool(_read(parallel, "enable_fault_tolerance")),
        failure_policy=str(_read(transfer, "kv_load_failure_policy")),
        role=str(_read(transfer, "kv_role")),
        extra=cast("Mapping[str, object]", _read(transfer, "kv_connector_extra_config")),
        device=str(_read(_read(vllm_config, "device_config"), "device_type")),
    )


def check_setup(setup: EngineSetup) -> None:
    """Refuses what would break what a cache promises.

    Raises:
        ConfigError: naming the setting and what it should be.
    """
    if setup.failure_policy != "recompute":
        raise ConfigError(
            f"kv_load_failure_policy is {setup.failure_policy!r}, so that a tier that fails would fail requests; "
            'set "kv_load_failure_policy": "recompute" in --kv-transfer-config'
        )
    if setup.role != "kv_both":
        raise ConfigError(f'kv_role is {setup.role!r}; Kvist both stores and loads: set "kv_role": "kv_both"')
    if setup.goes_on:
        raise ConfigError(
            "enable_fault_tolerance is on, so that vLLM goes on after a step that failed and lost Kvist's orders: "
            "requests would wait for ever; start vLLM without --enable-fault-tolerance and --fault-tolerance-config"
        )


def packing_of(platform: str, version: str, vllm_config: object, groups: Sequence[ReadGroup]) -> str:
    """How the inside of a block lies: as can be seen, or packed for a processor in a way that has this name.

    Args:
        platform: what vLLM runs on.
        version: of vLLM, to which a packing belongs.
        vllm_config: knows the layers.
        groups: whose layers count.

    Raises:
        ConfigError: a layer does not say how it packs, or the platform is one that nobody has looked at.
    """
    if platform == "cuda":
        return CANONICAL
    if platform != "cpu":
        raise ConfigError(f"this vLLM keeps KV on {platform!r}, and Kvist stores that of CUDA devices and processors")
    layers = cast("Mapping[str, object]", _read(_read(vllm_config, "compilation_config"), "static_forward_context"))
    names = [name for each in groups for name in each.group.layers]
    marks = {str(_read(layers.get(name), "isa")) for name in names}
    return f"{platform} {', '.join(sorted(marks))} of vllm {version}"


T = TypeVar("T")


def _draft(vllm_config: object, read: Callable[[object], T]) -> T | None:
    """Something of the model that drafts; None where none does, or where it has no KV."""
    speculative = _read(vllm_config, "speculative_config")
    if speculative is None or str(_read(speculative, "method")) in _NO_DRAFT_KV:
        return None
    draft = _read(speculative, "draft_model_config")
    return None if draft is None else read(draft)


def _quantization(model: object) -> str | None:
    """How weights are quantised; what the operator says of single layers counts too."""
    name, said = _text(_read(model, "quantization")), _read(model, "quantization_config")
    return name if said is None else f"{name} {config_digest({'said': said})}"


def _digest(config: object, names: Iterable[str]) -> str:
    """Stands for some settings of a part of vLLM's configuration; "none" where that part is not there."""
    return "none" if config is None else config_digest({name: _read(config, name) for name in names})


def _config(model: object) -> Mapping[str, object]:
    config = _read(model, "hf_config")
    plain = cast("Callable[[], object]", _read(config, "to_dict"))()
    if not isinstance(plain, Mapping):
        raise ConfigError(f"the model's configuration is {type(plain).__name__} and no mapping of names to values")
    return plain


def _read(where: object, name: str) -> object:
    """An attribute that this release should have.

    Raises:
        ConfigError: it has not.
    """
    try:
        return cast("object", getattr(where, name))
    except AttributeError as error:
        raise ConfigError(
            f"this vLLM's {type(where).__name__} has no {name}; install an unchanged supported release"
        ) from error


def _int(where: object, name: str) -> int:
    value = _read(where, name)
    if not isinstance(value, int):
        raise ConfigError(f"this vLLM's {type(where).__name__}.{name} is {value!r} and no number")
    return value


def _text(value: object) -> str | None:
    return None if value is None else str(value)
