"""Whether a pool answers, takes and gives up a record, and what it does when it is full.

Leaves nothing there: the record that is written under a key of nobody's is deleted again, and would expire by itself.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvist.app.doctor_findings import Finding, note, ok, problem, shown
from kvist.app.tier_specs import PoolSpec
from kvist.app.tiers import pool_settings
from kvist.base.clock import Calendar, Clock
from kvist.base.errors import ConfigError, TierError
from kvist.base.ids import BlockHash, GroupId
from kvist.base.units import format_bytes
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.tiers.ports import Address, NotStored, Write

if TYPE_CHECKING:
    # Parts of an extra.
    from kvist.tiers.redis import RedisTier
    from kvist.tiers.redis_settings import RedisSettings
    from kvist.tiers.redis_wire import RedisWire

_PROBE_BYTES = 4096
_PROBE_S = 60.0
_SKEW_S_MAX = 5.0
_RELEASE_MIN = (7, 0)
_INFO_BYTES_MAX = 16 * 2**10
_TIME_BYTES_MAX = 96
_LOCAL = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a server says of itself.

    Attributes:
        facts: of INFO, by name; empty where the user may not ask.
        unix_s: its wall clock; None where the user may not ask.
        round_trip_s: of the shortest question.
        probe: why the probe was not stored; empty: it was.
    """

    facts: Mapping[str, str]
    unix_s: float | None
    round_trip_s: float
    probe: str


def pool_findings(spec: PoolSpec, clock: Clock, calendar: Calendar) -> Iterator[Finding]:
    """Asks one pool; every question ends within the tier's time-outs."""
    check = f"tier {spec.name}"
    try:
        settings = pool_settings(spec)
    except ConfigError as error:
        yield problem(check, str(error))
        return
    yield from _exposure(check, settings)
    try:
        said = _ask(spec.name, settings, clock, calendar)
    except TierError as error:
        yield problem(check, str(error), "start it, or correct its URL, user or password; without it nothing is shared")
        return
    yield from judged(check, settings, said, calendar.now_unix_s())


def judged(check: str, settings: "RedisSettings", said: Said, now_unix_s: float) -> Iterator[Finding]:
    """What to think of what a server says of itself."""
    if said.probe:
        remedy = "let it evict (maxmemory-policy allkeys-lru), and the user write: docs/how-to/keep-kv.md"
        yield problem(check, f"{settings.server} did not take a record: {said.probe}", remedy)
    else:
        trip = said.round_trip_s * 1e3
        yield ok(check, f"{settings.server} answers in {trip:.2f} ms, took a record and gave it up again")
    if not said.facts:
        text = f"{settings.server} does not let this user ask INFO, so its memory limit and its release were not seen"
        yield note(check, text, "look at maxmemory and maxmemory-policy yourself")
    else:
        yield from _release(check, said.facts)
        yield from _memory(check, said.facts)
    if said.unix_s is not None and abs(skew := said.unix_s - now_unix_s) > _SKEW_S_MAX:
        text = f"its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this host's"
        yield note(check, f"{text}; blocks with a time to live go that much too early or late", "let both use NTP")


def _exposure(check: str, settings: "RedisSettings") -> Iterator[Finding]:
    server = settings.server
    if server.socket_path is None and server.host not in _LOCAL and not (server.tls and server.password):
        lacking = " and ".join(name for name, has in (("a password", server.password), ("TLS", server.tls)) if not has)
        text = f"{server} is asked without {lacking}: who can reach it, or listen, has the KV, and may put some there"
        yield note(check, text, "use rediss:// and a user with a password (username, password_file)")


def _ask(name: str, settings: "RedisSettings", clock: Clock, calendar: Calendar) -> Said:
    """Asks a server.

    Raises:
        TierError: it cannot be reached, or does not let us in.
    """
    # Late: their packages are an extra, asked for before.
    from kvist.tiers.redis import RedisTier  # noqa: PLC0415
    from kvist.tiers.redis_connections import RedisConnections  # noqa: PLC0415

    with closing(RedisTier(name, settings, clock)) as tier, closing(RedisConnections(name, settings, clock)) as opened:
        address = _nobodys()
        tier.find([address])  # connects
        began_s = clock.now_s()
        tier.find([address])
        round_trip_s = clock.now_s() - began_s
        with opened.borrow() as wire:
            facts, unix_s = _facts(wire), _time(wire)
        return Said(facts=facts, unix_s=unix_s, round_trip_s=round_trip_s, probe=_refusal(tier, address, calendar))


def _facts(wire: "RedisWire") -> dict[str, str]:
    """INFO, of the parts that matter; what the user may not ask is left out."""
    from kvist.tiers.redis_records import command  # noqa: PLC0415  part of an extra

    facts: dict[str, str] = {}
    for section in (b"server", b"memory", b"cluster"):
        wire.begin(_INFO_BYTES_MAX)
        wire.send([command(b"INFO", section)])
        answer = wire.receive()
        if isinstance(answer, bytes):
            rows = (line.partition(":") for line in answer.decode("utf-8", "replace").splitlines())
            facts |= {name: value for name, colon, value in rows if colon}
    return facts


def _time(wire: "RedisWire") -> float | None:
    from redis.exceptions import ResponseError  # noqa: PLC0415  part of an extra

    from kvist.tiers.redis_records import command  # noqa: PLC0415  part of an extra

    wire.begin(0)
    wire.send([command(b"TIME")])
    try:
        seconds, micros = wire.receive_array(_TIME_BYTES_MAX)
        return int(seconds) + int(micros) / 1e6
    except (ResponseError, ValueError):
        return None  # not allowed, or no time


def _nobodys() -> Address:
    """The address of a record that no server ever stores."""
    namespace, tenant = Namespace(secrets.token_bytes(32)), TenantTag(secrets.token_bytes(16))
    return Address(key=BlockKey(namespace, GroupId(0), "prefix", BlockHash(secrets.token_bytes(32))), tenant=tenant)


def _refusal(tier: "RedisTier", address: Address, calendar: Calendar) -> str:
    """Why a record cannot be stored, or deleted; empty where it can."""
    now = calendar.now_unix_s()
    probe = memoryview(bytes(_PROBE_BYTES))
    try:
        (outcome,) = tier.write(
            [Write(address=address, record=probe, created_unix_s=now, expires_unix_s=now + _PROBE_S)]
        )
        tier.delete([address])
    except TierError as error:
        return str(error)
    return outcome.reason if isinstance(outcome, NotStored) else ""


def _release(check: str, facts: Mapping[str, str]) -> Iterator[Finding]:
    text = facts.get("redis_version", "")
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isascii() and part.isdigit() and len(part) < 9)
    if "valkey_version" not in facts and numbers < _RELEASE_MIN:
        yield problem(
            check, f"Redis {shown(text)} lacks commands that the tier uses", "use Redis 7.0 or later, or Valkey"
        )
    if facts.get("cluster_enabled") == "1":
        text = "it is a cluster, and the tier speaks to one server only: most blocks are refused"
        yield problem(check, text, "use a server of its own, without cluster mode")


def _memory(check: str, facts: Mapping[str, str]) -> Iterator[Finding]:
    limit, policy = facts.get("maxmemory", ""), facts.get("maxmemory_policy", "")
    if not limit.isascii() or not limit.isdigit() or len(limit) > 20:
        return
    if int(limit) == 0:
        text = "it has no maxmemory: blocks fill its host until the system ends it"
        yield problem(check, text, "set maxmemory there, and maxmemory-policy allkeys-lru")
    elif policy == "noeviction":
        text = f"its maxmemory is {format_bytes(int(limit))} and its policy {policy}: once full, it takes nothing more"
        yield problem(check, text, "set maxmemory-policy allkeys-lru there")
    else:
        yield ok(check, f"it keeps at most {format_bytes(int(limit))}, and evicts by {shown(policy)}")
