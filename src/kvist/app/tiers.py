"""From what the operator asked for to tiers that are open: the one place that names concrete tiers.

Each tier is wrapped alike, outermost first: counted, then proven, then (in a rehearsal) made to fail, then the medium.
What can be refused is refused here, before a server says that it is ready.
"""

import contextlib
import importlib.util
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvist.app.shared_memory import shared_region
from kvist.app.tier_specs import DiskSpec, DramSpec, PoolSpec
from kvist.base.clock import Clock
from kvist.base.errors import ConfigError, TierFullError, TierTimeoutError, TierUnavailableError
from kvist.base.units import format_bytes, rounded_up
from kvist.blocks.form import HEADER_BYTES
from kvist.fabric.claims import BookLimits
from kvist.fabric.messages import TierName
from kvist.fabric.settings import TierSettings
from kvist.tiers.disk import DiskTier
from kvist.tiers.disk_rows import place_bytes_for
from kvist.tiers.disk_settings import DiskSettings
from kvist.tiers.faulty import Fail, Fault, Flip, Impostor, Resize, Torn, Wait, faulty, seeded
from kvist.tiers.memory import MemoryTier
from kvist.tiers.metered import metered
from kvist.tiers.ports import Tier
from kvist.tiers.regions import Regions
from kvist.tiers.verified import verified

if TYPE_CHECKING:
    from kvist.tiers.redis_settings import RedisServer, RedisSettings  # part of an extra

_DRAM_ALIGNMENT = 64
_DRAM_EXTENT_BYTES = 16 * 2**20
_EXTENTS_MIN = 8
_PASSWORD_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTier:
    """One tier, ready for use, and what control needs to know of it."""

    tier: Tier
    settings: TierSettings


@contextlib.contextmanager
def opened_tiers(
    specs: Sequence[DramSpec | DiskSpec | PoolSpec], record_bytes: Sequence[int], regions: Regions, clock: Clock
) -> Iterator[Mapping[TierName, OpenTier]]:
    """Opens tiers, in their order, and closes them in the end.

    Args:
        specs: what was asked for, fastest first.
        record_bytes: lengths of the records that will be stored.
        regions: where the memory of tiers becomes known.
        clock: times the tiers' answers.

    Raises:
        ConfigError: one cannot be used; says which and why.
        CapacityError: the memory is not there.
    """
    with ExitStack() as stack:
        found: dict[TierName, OpenTier] = {}
        for spec in specs:
            opened = _open(spec, record_bytes, regions, clock)
            stack.callback(opened.tier.close)
            found[opened.settings.name] = opened
        yield found


def _open(
    spec: DramSpec | DiskSpec | PoolSpec, record_bytes: Sequence[int], regions: Regions, clock: Clock
) -> OpenTier:
    match spec:
        case DramSpec():
            return _open_dram(spec, record_bytes, regions, clock)
        case DiskSpec():
            return _open_disk(spec, record_bytes, clock)
        case PoolSpec():
            return _open_pool(spec, clock)


def _open_dram(spec: DramSpec, record_bytes: Sequence[int], regions: Regions, clock: Clock) -> OpenTier:
    longest = rounded_up(max(record_bytes), _DRAM_ALIGNMENT)
    if spec.bytes < longest * len(record_bytes):
        needed = format_bytes(longest * len(record_bytes))
        raise ConfigError(
            f"tier {spec.name}: {format_bytes(spec.bytes)} do not hold one block of this model ({needed})"
        )
    _check_quota(spec, longest)
    # Whole records, so that no room is lost at the end of each extent of the longest.
    extent = max(
        longest, min(_DRAM_EXTENT_BYTES, spec.bytes // (_EXTENTS_MIN * len(record_bytes))) // longest * longest
    )
    region = regions.add(shared_region(f"tier-{spec.name}", spec.bytes, f"tier {spec.name}"))
    memory = MemoryTier(spec.name, region, alignment=_DRAM_ALIGNMENT)
    return OpenTier(
        tier=metered(verified(_rehearsed(memory, spec)), clock),
        settings=TierSettings(
            name=TierName(spec.name),
            kind="dram",
            limits=BookLimits(
                bytes_max=spec.bytes,
                extent_bytes=extent,
                alignment=_DRAM_ALIGNMENT,
                tenant_bytes_default=spec.tenant_bytes,
            ),
            region=region.id,
            lanes=1,
        ),
    )


def _open_disk(spec: DiskSpec, record_bytes: Sequence[int], clock: Clock) -> OpenTier:
    _check_quota(spec, place_bytes_for(max(record_bytes)))
    disk = DiskTier(
        spec.name,
        DiskSettings(
            directory=Path(spec.path).absolute(),
            bytes_max=spec.bytes,
            bytes_free_min=spec.free_min,
            record_bytes_min=min(record_bytes),
            record_bytes_max=max(record_bytes),
            lengths=len({place_bytes_for(size) for size in record_bytes}),
        ),
    )
    limits = BookLimits(
        bytes_max=disk.bytes_for_records,
        extent_bytes=disk.segment_bytes,
        alignment=disk.alignment,
        records_max=disk.records_max,
        tenant_bytes_default=spec.tenant_bytes,
    )
    return OpenTier(
        tier=metered(verified(_rehearsed(disk, spec)), clock),
        settings=TierSettings(name=TierName(spec.name), kind="disk", limits=limits),
    )


def _open_pool(spec: PoolSpec, clock: Clock) -> OpenTier:
    settings = pool_settings(spec)
    from kvist.tiers.redis import RedisTier  # noqa: PLC0415  its packages are an extra, asked for just now

    return OpenTier(
        tier=metered(verified(_rehearsed(RedisTier(spec.name, settings, clock), spec)), clock),
        settings=TierSettings(name=TierName(spec.name), kind="pool"),
    )


def pool_settings(spec: PoolSpec) -> "RedisSettings":
    """How to talk to a pool; asks nothing of it.

    Raises:
        ConfigError: the packages for it are not installed, or a file or the URL cannot be used.
    """
    for package in ("redis", "hiredis"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"tier {spec.name}: {package} is not installed; run: pip install 'kvist[pool]'")
    from kvist.tiers.redis_settings import RedisSettings, parse_redis_url  # noqa: PLC0415  part of an extra

    return RedisSettings(
        server=_with_login(parse_redis_url(spec.url), spec),
        ca_file=_path(spec.ca_file),
        certificate_file=_path(spec.cert_file),
        key_file=_path(spec.key_file),
        connect_timeout_s=min(1.0, spec.timeout_s),
        timeout_s=spec.timeout_s,
        prefix=spec.prefix,
    )


def _rehearsed(tier: Tier, spec: DramSpec | DiskSpec | PoolSpec) -> Tier:
    """The medium, or one that fails now and then where the operator wants to see what that does."""
    if spec.faults is None:
        return tier
    delay_s = spec.faults.delay_s
    faults: list[Fault] = [
        Fail(error=TierUnavailableError),
        Fail(error=TierTimeoutError),
        Fail(error=TierFullError),
        Fail(error=TierUnavailableError, after=True),
        Flip(bit=3),
        Flip(bit=8 * HEADER_BYTES + 77),
        Resize(by=-1),
        Torn(bytes_kept=HEADER_BYTES + 1),
        Impostor(),
        Wait(wait=lambda: threading.Event().wait(delay_s)),
    ]
    return faulty(tier, seeded(spec.faults.seed, faults, one_in=spec.faults.one_in))


def _with_login(server: "RedisServer", spec: PoolSpec) -> "RedisServer":
    """The server with the name and the password that stand beside its URL."""
    if spec.password_file is None:
        return replace(server, username=spec.username or server.username)
    try:
        with Path(spec.password_file).open("rb") as file:
            password = file.read(_PASSWORD_BYTES_MAX + 1).decode().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"tier {spec.name}: cannot read the password in {spec.password_file}: {error}") from error
    if not password or len(password) > _PASSWORD_BYTES_MAX:
        raise ConfigError(f"tier {spec.name}: {spec.password_file} holds no password")
    return replace(server, username=spec.username or server.username, password=password)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _check_quota(spec: DramSpec | DiskSpec, longest: int) -> None:
    if spec.tenant_bytes is not None and spec.tenant_bytes < longest:
        given, needed = format_bytes(spec.tenant_bytes), format_bytes(longest)
        raise ConfigError(f"tier {spec.name}: tenant_bytes {given} do not hold one block of this model ({needed})")
