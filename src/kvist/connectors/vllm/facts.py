"""What a running vLLM says of the KV it computes, and which of that must be equal before KV may be shared. Pure.

Names and places of models are no such facts; their weights, and every number of their configuration, are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blake3 import blake3

from kvist.blocks.form import FORM_VERSION, Form

CONTENT_VERSION = 1
"""Of how vLLM lays out keys and values within the content of a token and head: raised where a release changes it."""

_UNRELATED = frozenset({"_name_or_path", "name_or_path", "transformers_version", "architectures_version", "auto_map"})
"""Fields of a model's configuration that say where it came from, or its code, which has a fact of its own."""

_ROPE_FIELDS = frozenset({"rope_type", "type"})
_ROPES_RENAMED: Mapping[object, str] = {"deepseek_yarn": "yarn", "deepseek_llama_scaling": "yarn"}
"""What vLLM's own code of a model calls a rope once it is loaded, which happens in the scheduler's process or not."""

_ROPES_OF_ANY_LENGTH = frozenset({"default", "linear", "llama3", "mrope", "proportional", "yarn"})
"""Kinds of rope whose angles do not depend on how long sequences may become."""

_DEEPEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One stored group: the kind of attention, its window in tokens, tokens per block of the engine."""

    kind: str
    window: int | None
    block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What vLLM says of itself.

    Attributes:
        release: of vLLM, its minor version.
        model: the whole configuration of the model after overrides, as plain values.
        draft: the same of a model that drafts and has KV in the same groups; None: there is none.
        dtype: of weights and activations.
        kv_dtype: as configured; "auto" is that of the weights.
        quantization: of the weights, with what the operator said of it; None: none.
        draft_quantization: the same of the model that drafts.
        position_tokens: how long sequences may become.
        hash_algorithm: how vLLM hashes blocks.
        hash_tokens: tokens per hash.
        groups: those that are stored.
        media: how images and the like are made ready, where a model takes any.
        code_revision: of code that came with the model and is used; None: the one there is, or vLLM's own code.
        computed_scales: whether scales of quantised KV come from what was served first, so that no other process has
            the same.
    """

    release: str
    model: Mapping[str, object]
    draft: Mapping[str, object] | None
    dtype: str
    kv_dtype: str
    quantization: str | None
    draft_quantization: str | None
    position_tokens: int
    hash_algorithm: str
    hash_tokens: int
    groups: tuple[GroupFacts, ...]
    media: str
    code_revision: str | None
    computed_scales: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What is not in vLLM's configuration.

    Attributes:
        weights: their digest, or the revision that the operator gave.
        draft_weights: of the model that drafts; empty where there is none.
        beside: digest of what lies beside the weights and takes part; empty where nothing does.
        epoch: of the weights: in place of what a digest cannot see.
        process: a name that nobody else has, for KV that must not leave the process.
    """

    weights: str
    draft_weights: str
    beside: str
    epoch: str
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What is stored of it.

    Attributes:
        packing: "canonical", or how a raw block is packed.
        block_tokens: of a record.
        forms: of the records, by group.
        layers: names, by group, in the order in which a record has them: which layers make a group is vLLM's choice.
    """

    packing: str
    block_tokens: int
    forms: tuple[Form, ...]
    layers: tuple[tuple[str, ...], ...]


def kv_facts(engine: EngineFacts, provenance: Provenance, records: Records) -> Mapping[str, str]:
    """The facts by name.

    Args:
        engine: what vLLM says of itself.
        provenance: what it does not say.
        records: what is stored.
    """
    return {
        "engine": "vllm",
        "weights": provenance.weights,
        "draft weights": provenance.draft_weights,
        "beside the weights": provenance.beside,
        "epoch": provenance.epoch,
        "model": config_digest(engine.model),
        "draft": "none" if engine.draft is None else config_digest(engine.draft),
        "dtype": engine.dtype,
        "kv dtype": engine.dtype if engine.kv_dtype == "auto" else engine.kv_dtype,
        "kv scales": provenance.process if engine.computed_scales else "of the weights",
        "quantization": engine.quantization or "none",
        "draft quantization": engine.draft_quantization or "none",
        "media": engine.media,
        "code": engine.code_revision or "as it is",
        "positions": positions_fact(engine),
        "groups": "; ".join(_group(group) for group in engine.groups),
        "layers": json.dumps(records.layers),
        "forms": "; ".join(_form(form) for form in records.forms),
        "block_tokens": str(records.block_tokens),
        "hash_scheme": "foreign v1",
        "layout": f"{records.packing}; form {FORM_VERSION}; content {CONTENT_VERSION}",
    }


def hash_scheme(engine: EngineFacts, chain_start: bytes) -> bytes:
    """Names how vLLM's hashes are made, and from what they start; equal only where the hashes are.

    Args:
        engine: what vLLM says of itself.
        chain_start: what vLLM puts in place of a first block's parent; it depends on a seed.
    """
    return b"vllm %s %d %s" % (engine.hash_algorithm.encode(), engine.hash_tokens, chain_start.hex().encode())


def positions_fact(engine: EngineFacts) -> str:
    """How long sequences may become, where the angles of rope depend on it."""
    kinds = set(_rope_kinds(engine.model))
    return "any" if kinds <= _ROPES_OF_ANY_LENGTH else f"{engine.position_tokens} with {', '.join(sorted(kinds))}"


def config_digest(config: Mapping[str, object]) -> str:
    """BLAKE3 over a configuration, whatever the order of its fields; what names its origin is left out.

    Values that are not plain count by their type alone: what they would show of themselves may hold an address, and
    differ from process to process.
    """
    text = json.dumps(_plain(config, _DEEPEST), sort_keys=True, ensure_ascii=True)
    return blake3(text.encode()).hexdigest()


def _plain(value: object, depth: int) -> object:
    if isinstance(value, str | bool | int | float | None):
        return value
    if depth > 0 and isinstance(value, Mapping):
        kept = ((str(key), each) for key, each in value.items() if str(key) not in _UNRELATED)
        return {key: _plain(_rope(each) if key in _ROPE_FIELDS else each, depth - 1) for key, each in kept}
    if depth > 0 and isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(each, depth - 1) for each in value]
    if depth > 0 and isinstance(value, set | frozenset):
        return sorted(json.dumps(_plain(each, depth - 1), sort_keys=True) for each in value)
    # Dtypes and enumerations show what they are, and nothing of where they lie.
    shown = str(value)
    return shown if " at 0x" not in shown else type(value).__qualname__


def _rope_kinds(config: Mapping[str, object], depth: int = _DEEPEST) -> list[str]:
    """Of the model, of its text part, and of single kinds of layers where those differ."""
    found = []
    for name, value in config.items():
        if not isinstance(value, Mapping) or depth == 0:
            continue
        if name in {"rope_scaling", "rope_parameters"}:
            found += [str(_rope(kind)) for key in ("rope_type", "type") if (kind := value.get(key)) is not None][:1]
        found += _rope_kinds({"rope_parameters": value} if _is_per_layer(name) else value, depth - 1)
    return found


def _rope(kind: object) -> object:
    return _ROPES_RENAMED.get(kind, kind) if isinstance(kind, str) else kind


def _is_per_layer(name: str) -> bool:
    return name.endswith("_attention")


def _group(group: GroupFacts) -> str:
    return f"{group.kind} of {'all' if group.window is None else group.window}, {group.block_tokens} per block"


def _form(form: Form) -> str:
    planes = "; ".join(f"{plane.name} {plane.dtype} {list(plane.shape)}" for plane in form.planes)
    return f"{planes}; {form.record_bytes} bytes"
