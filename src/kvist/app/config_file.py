"""`--config FILE`: the same settings as the flags, in TOML, and what flags cannot say.

    model = "smollm2"
    kv_memory = "4GiB"
    cache_ttl_seconds = 604800

    [tiers.dram]
    bytes = "8GiB"

    [tiers.disk]
    path = "/var/lib/kvist"
    bytes = "40GiB"
    tenant_bytes = "10GiB"

Top-level names are those of the flags, with underscores.
"""

import tomllib
from pathlib import Path

from kvist.app.tier_specs import DiskSpec, DramSpec, PoolSpec, read_tier_table
from kvist.base.errors import ConfigError

_LONGEST = 2**20
_SHOWN_MAX = 200


def read_config_file(path: Path) -> dict[str, object]:
    """Settings by name; `tiers` is a tuple of checked tiers, everything else is still to be checked.

    Raises:
        ConfigError: it cannot be read, is no TOML, or has a tier that cannot be.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise ConfigError(f"{path} is longer than {_LONGEST} bytes; that is no configuration")
        fields: dict[str, object] = dict(tomllib.loads(content.decode()))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    tables = fields.pop("tiers", {})
    if not isinstance(tables, dict):
        raise ConfigError(f"{path}: tiers is not a table; write [tiers.NAME] sections")
    try:
        fields["tiers"] = tuple(read_tier_table(name, table) for name, table in tables.items())
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return fields


def merged_tiers(
    file: tuple[DramSpec | DiskSpec | PoolSpec, ...],
    flags: tuple[DramSpec | DiskSpec | PoolSpec, ...],
    *,
    named: str = "--tier",
) -> tuple[DramSpec | DiskSpec | PoolSpec, ...]:
    """The tiers of both, fastest kind first; a flag replaces the file's tier of the same name.

    Args:
        file: its tiers.
        flags: tiers given beside it.
        named: what the operator calls these.

    Raises:
        ConfigError: one name is given twice beside the file, or two disk tiers share a directory.
    """
    names = [spec.name for spec in flags]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{named} {twice} is given twice; several of one kind need names of their own, in a file")
    specs = [*(spec for spec in file if spec.name not in names), *flags]
    paths = [_resolved(spec) for spec in specs if isinstance(spec, DiskSpec)]
    if shared := next((path for path in paths if paths.count(path) > 1), None):
        raise ConfigError(f"two tiers use the directory {shared}; give each one of its own")
    order = ("dram", "disk", "pool")
    return tuple(sorted(specs, key=lambda spec: order.index(spec.kind)))


def _resolved(spec: DiskSpec) -> Path:
    """Where a tier's directory really is.

    Raises:
        ConfigError: nowhere.
    """
    try:
        return Path(spec.path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to each other
        raise ConfigError(f"tier {spec.name}: {spec.path[:_SHOWN_MAX]!r} is no directory: {error}") from error
