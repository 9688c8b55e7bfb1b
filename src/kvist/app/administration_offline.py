"""What `kvist cache` does where no server runs: opens the tiers itself, for one command.

Needs no model. Host memory is gone with its server, so only disks and pools can be opened. A tier is opened only if
that loses nothing: a directory shares out its budget by what it holds, and cannot be opened as a smaller one.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from kvist.app.clock import SystemCalendar, SystemClock
from kvist.app.config_file import merged_tiers, read_config_file
from kvist.app.offline_stock import OfflineStock
from kvist.app.secret import load_secret, secret_path
from kvist.app.tier_specs import DiskSpec, DramSpec, PoolSpec, read_tier_flag
from kvist.app.tiers import OpenTier, opened_tiers
from kvist.base.errors import ConfigError
from kvist.base.units import format_bytes
from kvist.blocks.keys import tenant_key
from kvist.fabric.messages import TierName
from kvist.server.administration_verbs import Verbs
from kvist.tiers.disk_directory import INDEX
from kvist.tiers.disk_settings import DiskSettings
from kvist.tiers.regions import Regions

_SHOWN_MAX = 200

_RECORD_BYTES = 64 * 2**10
"""Of records in a directory that no server has ever used."""


@contextlib.contextmanager
def offline_verbs(specs: Sequence[DiskSpec | PoolSpec], secret: Path) -> Iterator[Verbs]:
    """The operator's verbs over tiers that this process opens, and closes in the end.

    Args:
        specs: which.
        secret: of the servers that use them; without the file, no tenant can be named.

    Raises:
        ConfigError: a tier cannot be used, or its server runs.
    """
    key_of = partial(tenant_key, load_secret(secret)) if _exists(secret) else None
    with closing(Regions()) as regions, contextlib.ExitStack() as stack:
        tiers: dict[TierName, OpenTier] = {}
        for spec in specs:  # each by what its own server shared it out by
            record_bytes = _record_bytes_min(spec) if isinstance(spec, DiskSpec) else _RECORD_BYTES
            tiers |= stack.enter_context(opened_tiers([spec], [record_bytes], regions, SystemClock()))
        yield Verbs(OfflineStock(tiers, SystemClock(), SystemCalendar()), key_of, None)


def _record_bytes_min(spec: DiskSpec) -> int:
    """What a directory's budget is shared out by, read before the tier is opened; nothing is changed.

    Raises:
        ConfigError: there is no such directory, or what it holds is more than it is said to.
    """
    directory = Path(spec.path).absolute()
    index = directory / INDEX
    if not _exists(index):
        raise ConfigError(f"tier {spec.name}: there is no tier in {directory}; name the directory that a server uses")
    facts = _facts_of(spec, index)
    settings = DiskSettings(directory=directory, bytes_max=spec.bytes, record_bytes_min=facts.record_bytes_min)
    if facts.records and (facts.end > _room(settings, facts.segment_bytes) or facts.records > settings.index.rows_max):
        raise ConfigError(
            f"tier {spec.name}: {directory} holds more than {format_bytes(spec.bytes)}, and opening it so would drop "
            "the rest; give the size that its server has"
        )
    return facts.record_bytes_min


def _room(settings: DiskSettings, segment_bytes: int) -> int:
    """Bytes for places; none where a budget is none."""
    try:
        return settings.segments(segment_bytes).bytes_max
    except ConfigError:
        return 0


class _Facts(NamedTuple):
    """What the index of a directory says.

    Attributes:
        records: how many.
        end: of the place that ends last.
        segment_bytes: length of the files that hold them.
        record_bytes_min: of the shortest that its server would store.
    """

    records: int
    end: int
    segment_bytes: int
    record_bytes_min: int


def _facts_of(spec: DiskSpec, index: Path) -> _Facts:
    """Reads an index that nobody uses.

    Raises:
        ConfigError: somebody does, or it cannot be read.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(index))}?mode=ro", uri=True, timeout=0)) as database:
            (leaves,) = database.execute("PRAGMA application_id").fetchone()
            (leaf_bytes,) = database.execute("PRAGMA page_size").fetchone()
            row = database.execute("SELECT COUNT(*), MAX(place + place_bytes) FROM records")
            count, end = row.fetchone()
            (least,) = database.execute("SELECT (SELECT record_bytes_min FROM settings)").fetchone()
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            why = "a server uses it; leave out --tier to ask that server"
        else:
            why = f"its index cannot be read ({error}); start its server, which begins with an empty one"
        raise ConfigError(f"tier {spec.name}: {index.parent}: {why}") from error
    if not isinstance(least, int) or least <= 0:
        least = _RECORD_BYTES
    return _Facts(int(count), int(end or 0), int(leaves) * int(leaf_bytes), least)


def offline_tiers(flags: Sequence[str], config: str | None) -> tuple[DiskSpec | PoolSpec, ...]:
    """The tiers that flags name, or those of a configuration file that outlive a server.

    Raises:
        ConfigError: one is none, or is host memory; or there is nothing to open.
    """
    named = merged_tiers((), tuple(map(read_tier_flag, flags)))
    for spec in named:
        if isinstance(spec, DramSpec):
            raise ConfigError(f"tier {spec.name}: host memory is gone with its server; leave it out")
    file = () if config is None else read_config_file(Path(config))["tiers"]
    assert isinstance(file, tuple), "a checked file has a tuple of tiers"
    kept = tuple(spec for spec in (*named, *file) if not isinstance(spec, DramSpec))
    if not kept:
        raise ConfigError(f"{config} has no disk and no pool, and nothing else outlives a server")
    return kept


def secret_of(path: str | None, environment: Mapping[str, str]) -> Path:
    """Where the secret is that servers make tenants' keys with.

    Raises:
        ConfigError: it was named and is not there.
    """
    found = secret_path(path, environment)
    if path is not None and ("\0" in path or not _exists(found)):
        raise ConfigError(f"--cache-secret-file {path!r} is not there")
    return found


def _exists(path: Path) -> bool:
    """Whether a file is there.

    Raises:
        ConfigError: no file can be: its path is too long, or leads through what is no directory of this user.
    """
    try:
        return path.exists()
    except OSError as error:
        raise ConfigError(f"{str(path)[:_SHOWN_MAX]!r} cannot be looked for: {error.strerror}") from error
