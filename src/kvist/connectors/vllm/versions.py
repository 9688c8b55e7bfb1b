"""What may differ between releases of vLLM: the signatures of everything of its that is overridden.

Compared at the start, because an override whose arguments have changed would fail, or silently not be called, in the
middle of serving. What objects hand over is read in one other place, `kvist.connectors.vllm.reading`.
"""

import inspect
from collections.abc import Callable, Mapping

from kvist.base.errors import ConfigError

_SINCE_032: Mapping[str, str] = {
    "requires_kv_delivery": "property",
    # worker's side
    "register_kv_caches": "self, kv_caches",
    "handle_preemptions": "self, kv_connector_metadata",
    "start_load_kv": "self, forward_context, **kwargs",
    "wait_for_layer_load": "self, layer_name",
    "save_kv_layer": "self, layer_name, kv_layer, attn_metadata, **kwargs",
    "wait_for_save": "self",
    "get_transfer_results": "self, finished_req_ids",
    "get_block_ids_with_load_errors": "self",
    "get_handshake_metadata": "self",
    "build_connector_worker_meta": "self",
    # scheduler's side
    "set_xfer_handshake_metadata_pp_aware": "self, metadata",
    "on_new_request": "self, request",
    "get_num_new_matched_tokens": "self, request, num_computed_tokens",
    "update_state_after_alloc": "self, request, blocks, num_external_tokens",
    "get_external_cache_hit_sources": "self, request, num_external_tokens",
    "build_connector_meta": "self, scheduler_output",
    "update_connector_output": "self, connector_output",
    "request_finished_all_groups": "self, request, block_ids",
    "has_pending_block_frees": "self",
    "bind_gpu_block_pool": "self, gpu_block_pool",
    "reset_cache": "self",
    # both
    "shutdown": "self",
    "get_kv_connector_stats": "self",
    "build_kv_connector_stats": "classmethod cls, data=",
    "build_prom_metrics": "classmethod cls, vllm_config, metric_types, labelnames, per_engine_labelvalues",
    "__init__": "self, vllm_config, role, kv_cache_config",
}

SUPPORTED: Mapping[str, Mapping[str, str]] = {"0.32": _SINCE_032, "0.33": _SINCE_032}
"""By minor release: what is overridden, and with which arguments. `=` after a name stands for any default."""


def check_release(version: str, *bases: type) -> None:
    """Compares a release of vLLM with those that are supported.

    Args:
        version: as vLLM states it.
        bases: its classes whose members are overridden.

    Raises:
        ConfigError: it is none of them, or its members are not what that release had; says which are.
    """
    known = SUPPORTED.get(minor_release(version))
    if known is None:
        raise _unsupported(version)
    found = {name: signature_in(bases, name) for name in known}
    differing = [f"{name}({found[name]})" for name, expected in known.items() if found[name] != expected]
    if differing:
        raise _differs(version, "; ".join(differing))


def refusal(version: str, error: ImportError) -> ConfigError:
    """What to say where something that is needed of vLLM's cannot even be imported.

    Args:
        version: as vLLM states it.
        error: names what is not there.
    """
    return _differs(version, str(error)) if minor_release(version) in SUPPORTED else _unsupported(version)


def _unsupported(version: str) -> ConfigError:
    return ConfigError(f"vLLM {version} is not supported; install one of these releases: {', '.join(SUPPORTED)}")


def _differs(version: str, what: str) -> ConfigError:
    return ConfigError(
        f"vLLM {version} differs from the {minor_release(version)} that is supported: {what}; "
        f"install an unchanged release of {', '.join(SUPPORTED)}"
    )


def minor_release(version: str) -> str:
    """``0.32`` of ``0.32.0+cpu``; what does not look like a version comes back as it is."""
    parts = version.split("+", maxsplit=1)[0].split(".")
    return ".".join(parts[:2]) if len(parts) > 1 and all(part.isdecimal() for part in parts[:2]) else version


def signature_in(bases: tuple[type, ...], name: str) -> str:
    """What a member looks like in the first of some classes that has it, or in one of that one's own bases."""
    for base in bases:
        for ancestor in base.__mro__[:-1]:
            if name in vars(ancestor):
                return signature_of(vars(ancestor)[name])
    return "absent"


def signature_of(member: object) -> str:
    """A member of a class as in `SUPPORTED`: what can be called with, without annotations."""
    if isinstance(member, property):
        return "property"
    if isinstance(member, classmethod | staticmethod):
        return f"{type(member).__name__} {_parameters(member.__func__)}"
    return _parameters(member) if callable(member) else type(member).__name__


_STARS: Mapping[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _parameters(function: Callable[..., object]) -> str:
    shown: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        stars = _STARS.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not any(each.startswith("*") for each in shown):
            shown.append("*")
        shown.append(stars + parameter.name + ("" if parameter.default is parameter.empty else "="))
    return ", ".join(shown)
