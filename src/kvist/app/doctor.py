"""Examines how Kvist is set up under vLLM: each thing that would keep it from starting, or silently from ever hitting.

Works in vLLM's own environment and in one without it, before vLLM is started and beside one that runs. Changes nothing
that vLLM would not change itself.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvist.app.connector_config import FILE, TIERS, ConnectorConfig, read_connector_config
from kvist.app.doctor_disk import disk_findings
from kvist.app.doctor_findings import Finding, note, ok, problem, shown
from kvist.app.doctor_hashes import CHECK as HASHES
from kvist.app.doctor_hashes import DEFAULT, VARIABLE, hash_findings
from kvist.app.doctor_pool import pool_findings
from kvist.app.doctor_release import Said, release_findings
from kvist.app.doctor_secret import secret_findings
from kvist.app.doctor_server import CHECK as SERVER
from kvist.app.doctor_server import Running, ask_server, server_findings
from kvist.app.doctor_sizes import CHECK as SIZES
from kvist.app.doctor_sizes import Needs, model_findings, read_config, size_findings
from kvist.app.doctor_transfer import read_transfer
from kvist.app.tier_config import MANY
from kvist.app.tier_specs import DiskSpec, DramSpec, PoolSpec
from kvist.base.clock import Calendar, Clock
from kvist.base.errors import ConfigError, ModelError, WireError
from kvist.base.units import format_bytes
from kvist.geometry.config import geometry_from_config
from kvist.tiers.disk_directory import INDEX

CONFIG = "config"
MEMORY = "memory"
_STAGING_LEAST = 64 * 2**20
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to examine.

    Attributes:
        transfer: the value of `--kv-transfer-config`.
        config: a configuration file, where `transfer` does not name it.
        tiers: as after `--tier`, likewise.
        hash_algorithm: as vLLM takes it; None: its default, or what a running one says.
        url: of a running vLLM.
        model: its directory or its name at the hub; None: what a running one says.
    """

    transfer: str | None = None
    config: str | None = None
    tiers: tuple[str, ...] = ()
    hash_algorithm: str | None = None
    url: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an examination looks at beside what it is asked.

    Attributes:
        environment: variables.
        clock, calendar: for round trips and the clocks of pools.
        bytes_free: memory that may still be taken.
        run: runs a command for at most so many seconds.
        is_vllm_there: whether this environment has vLLM.
    """

    environment: Mapping[str, str]
    clock: Clock
    calendar: Calendar
    bytes_free: Callable[[], int]
    run: Callable[[Sequence[str], float], Said]
    is_vllm_there: bool


def examine(asked: Asked, around: Surroundings) -> tuple[Finding, ...]:
    """Looks at everything that was named.

    Raises:
        ConfigError: what was asked contradicts itself.
    """
    if asked.transfer is not None and (asked.config is not None or asked.tiers):
        raise ConfigError(f"--kv-transfer-config says what the tiers are ({FILE}, {TIERS}); leave out the other flags")
    found = release_findings(around.run, is_there=around.is_vllm_there)
    running = _running(asked, found)
    config = _config(asked, found)
    kinds = frozenset(spec.kind for spec in config.tiers) if config else frozenset()
    found += _hashes(asked, around.environment, running, kinds)
    if config is not None:
        found += _tiers(config, around, is_running=running is not None)
        found += secret_findings(
            config.cache_secret_file, kinds, around.environment, is_filled=any(map(_is_filled, config.tiers))
        )
        found += _sizes(asked, config, running, around.environment)
    return tuple(found)


def _running(asked: Asked, found: list[Finding]) -> Running | None:
    """The vLLM that runs, if one was named and answers."""
    if asked.url is None:
        text = "no running vLLM was looked at, and only one shows whether prefix caching is on and anything is found"
        found.append(note(SERVER, text, "add --url http://HOST:PORT once it runs"))
        return None
    try:
        running = ask_server(asked.url)
    except WireError as error:
        found.append(problem(SERVER, str(error), "start vLLM, or correct --url"))
        return None
    found += server_findings(running)
    return running


def _config(asked: Asked, found: list[Finding]) -> ConnectorConfig | None:
    """Kvist's settings, if there are any that can be."""
    extra: Mapping[str, object] | None = {
        name: value for name, value in ((FILE, asked.config), (TIERS, list(asked.tiers))) if value
    }
    if asked.transfer is not None:
        transfer = read_transfer(asked.transfer)
        found += transfer.findings
        extra = transfer.extra
    if extra is None or (asked.transfer is None and not extra):
        text = "no settings of Kvist's were looked at"
        found.append(note(CONFIG, text, "add --kv-transfer-config with what vLLM gets, or --config or --tier"))
        return None
    try:
        config = read_connector_config(extra)
    except ConfigError as error:
        found.append(problem(CONFIG, str(error), "correct it: vLLM does not start with it"))
        return None
    found += _settings(extra, config)
    return config


def _settings(extra: Mapping[str, object], config: ConnectorConfig) -> Iterator[Finding]:
    """What settings mean that can be, and may not be meant."""
    yield ok(CONFIG, f"{len(config.tiers)} tier(s): {', '.join(spec.name for spec in config.tiers)}")
    file = extra.get(FILE)
    if isinstance(file, str) and not Path(file).is_absolute():
        text = f"{FILE} is {shown(file)}, relative to the directory that vLLM is started in"
        yield note(CONFIG, text, "give an absolute path")
    listed = extra.get(TIERS)
    if isinstance(listed, list | tuple) and any(_PASSWORD.search(str(each)) for each in listed):
        text = f"a password stands in {TIERS}, which vLLM writes into its log, and who lists processes sees"
        yield note(CONFIG, text, f"say that tier in the file of {FILE}, with username and password_file")
    if config.load_when == "always":
        text = "load_when is always: blocks are loaded also where computing them would be faster"
        yield note(CONFIG, text, "leave it out, unless you rehearse or measure")
    if config.weights_revision is not None:
        text = f"weights_revision {shown(config.weights_revision)} stands for the weights, whose files are not read"
        yield note(CONFIG, text, "change it whenever the weights change, or old KV is used with new weights")
    for spec in config.tiers:
        if spec.faults is not None:
            text = f"tier {spec.name} is told to fail on purpose (faults)"
            yield note(CONFIG, text, "remove faults when the rehearsal is over")


def _hashes(
    asked: Asked, environment: Mapping[str, str], running: Running | None, kinds: frozenset[str]
) -> Iterator[Finding]:
    said = running.settings.get("prefix_caching_hash_algo") if running else None
    if said is not None and asked.hash_algorithm not in (None, said):
        text = f"the running vLLM hashes with {shown(said)}, and not with {shown(asked.hash_algorithm)}"
        yield note(HASHES, text, "look at what it was started with")
    yield from hash_findings(said or asked.hash_algorithm or DEFAULT, environment.get(VARIABLE), kinds)


def _tiers(config: ConnectorConfig, around: Surroundings, *, is_running: bool) -> Iterator[Finding]:
    yield from _memory(config, around.bytes_free(), is_running=is_running)
    for spec in config.tiers:
        if isinstance(spec, DiskSpec):
            yield from disk_findings(spec, is_running=is_running)
        elif isinstance(spec, PoolSpec):
            yield from pool_findings(spec, around.clock, around.calendar)


def _memory(config: ConnectorConfig, free: int, *, is_running: bool) -> Iterator[Finding]:
    """What is taken at the start: host memory and staging."""
    if is_running:
        return  # it has been taken
    staging = config.staging_memory or _STAGING_LEAST
    asked = sum(spec.bytes for spec in config.tiers if isinstance(spec, DramSpec)) + staging
    text = f"tiers and staging take {format_bytes(asked)} of memory at the start, and {format_bytes(free)} are free now"
    if asked > free:
        yield problem(MEMORY, text, "give the dram tier less")
    elif 2 * asked > free:
        yield note(MEMORY, text, "see that the rest is enough for vLLM, whose weights and KV may be in it too")
    else:
        yield ok(MEMORY, text)


def _sizes(
    asked: Asked, config: ConnectorConfig, running: Running | None, environment: Mapping[str, str]
) -> Iterator[Finding]:
    model = asked.model or (running.model if running else None)
    if model is None:
        yield note(SIZES, "sizes were not compared with the model's KV", "add --model DIRECTORY")
        return
    try:
        content = read_config(model, environment)
        yield from model_findings(content)
        geometry = geometry_from_config(content)
    except ModelError as error:
        yield note(SIZES, f"sizes were not compared with the model's KV: {error}")
        return
    settings = running.settings if running else {}
    needs = Needs(
        geometry=geometry,
        prompt_tokens=_believed(running.tokens_max if running else None) or geometry.positions_max,
        cache_dtype=settings.get("cache_dtype", "auto"),
    )
    own = _count(settings.get("kv_cache_memory_bytes"))  # given, or found out, on some platforms alone
    tokens = _count(settings.get("kv_cache_size_tokens"))
    if own is None and tokens is not None:
        own = needs.bytes_of(tokens)
    yield from size_findings(config.tiers, replace(needs, own_bytes=own))


def _believed(tokens: int | None) -> int | None:
    """The longest sequence that a server tells of; None: it says nothing, or what nobody has."""
    return tokens if tokens is not None and tokens <= MANY else None


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def _is_filled(spec: DramSpec | DiskSpec | PoolSpec) -> bool:
    """Whether a disk tier was used before."""
    if not isinstance(spec, DiskSpec):
        return False
    try:
        return (Path(spec.path) / INDEX).exists()
    except (OSError, ValueError):
        return False  # looking at the tier says so
