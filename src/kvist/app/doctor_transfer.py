"""What `--kv-transfer-config` says: whether vLLM loads Kvist, uses it both ways, and goes on when a load fails.

Pure; what stands in `kv_connector_extra_config` for Kvist is read by `kvist.app.connector_config`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvist.app.doctor_findings import Finding, ok, problem, shown
from kvist.base.errors import ConfigError

CHECK = "transfer"
CONNECTOR = "KvistConnector"
MODULE = "kvist.app.vllm"
_LONGEST = 2**20
_SEVERAL = "MultiConnector"
_ROLES = ("kv_both", "kv_producer", "kv_consumer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What was found, and what Kvist is told.

    Attributes:
        findings: about everything but Kvist's own settings.
        extra: of the part that is for Kvist; None where none is.
    """

    findings: tuple[Finding, ...]
    extra: Mapping[str, object] | None


def read_transfer(text: str) -> Transfer:
    """Looks at the value of `--kv-transfer-config`.

    Raises:
        ConfigError: it is no JSON object.
    """
    if len(text) > _LONGEST:
        raise ConfigError(f"--kv-transfer-config is longer than {_LONGEST} characters; give the JSON that vLLM gets")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"--kv-transfer-config {shown(text)} is no JSON ({error}); quote it for the shell with single quotes"
        ) from error
    if not isinstance(fields, dict):
        raise ConfigError(f"--kv-transfer-config {shown(text)} is no JSON object; write {{...}}")
    found = list(_outside(fields))
    ours, mine = _ours(fields)
    found += mine
    if ours is None:
        return Transfer(findings=tuple(found), extra=None)
    found += _module(ours)
    extra = ours.get("kv_connector_extra_config", {})
    if not isinstance(extra, dict):
        found.append(problem(CHECK, f"kv_connector_extra_config is {shown(extra)}", "make it a JSON object"))
        extra = None
    if all(each.status == "ok" for each in found):
        found = [ok(CHECK, f"vLLM loads {CONNECTOR}, stores and loads, and computes what cannot be loaded")]
    return Transfer(findings=tuple(found), extra=extra)


def _outside(fields: Mapping[str, object]) -> Iterator[Finding]:
    """What vLLM itself reads."""
    role = fields.get("kv_role")
    if role not in _ROLES:
        yield problem(CHECK, f"kv_role is {shown(role)}, with which vLLM does not start", 'write "kv_role": "kv_both"')
    elif role != "kv_both":
        yield problem(
            CHECK,
            f"kv_role is {shown(role)}, and Kvist does not start unless it both stores and loads",
            'write "kv_both"',
        )
    policy = fields.get("kv_load_failure_policy")
    if policy != "recompute":
        is_left_out = "kv_load_failure_policy" not in fields
        given = "is not given, and is then fail" if is_left_out else f"is {shown(policy)}"
        yield problem(
            CHECK,
            f"kv_load_failure_policy {given}: requests would fail when a load does, so Kvist does not start with it",
            'write "kv_load_failure_policy": "recompute"',
        )
    if misplaced := sorted(name for name in fields if name.startswith("kvist")):
        yield problem(
            CHECK,
            f"{shown(misplaced[0])} stands beside kv_connector, where vLLM does not know it",
            'move it into "kv_connector_extra_config": {...}',
        )


def _ours(fields: Mapping[str, object]) -> tuple[Mapping[str, object] | None, list[Finding]]:
    """The part that names Kvist."""
    name = fields.get("kv_connector")
    if name == CONNECTOR:
        return fields, []
    if name != _SEVERAL:
        text = f"kv_connector is {shown(name)}, so vLLM does not load Kvist"
        return None, [problem(CHECK, text, f'write "kv_connector": "{CONNECTOR}"')]
    extra = fields.get("kv_connector_extra_config")
    children = extra.get("connectors") if isinstance(extra, dict) else None
    for child in children if isinstance(children, list) else []:
        if isinstance(child, dict) and child.get("kv_connector") == CONNECTOR:
            text = (
                f"{CONNECTOR} is one of several connectors, whose statistics vLLM cannot read from outside its registry"
            )
            return child, [problem(CHECK, text, f'make "{CONNECTOR}" the only connector')]
    text = f"none of the connectors of {_SEVERAL} is {CONNECTOR}, so vLLM does not load Kvist"
    return None, [problem(CHECK, text, f'put one with "kv_connector": "{CONNECTOR}" into the list')]


def _module(ours: Mapping[str, object]) -> Iterator[Finding]:
    path = ours.get("kv_connector_module_path")
    if path != MODULE:
        yield problem(
            CHECK,
            f"kv_connector_module_path is {shown(path)}, where vLLM does not find {CONNECTOR}",
            f'write "kv_connector_module_path": "{MODULE}"',
        )
