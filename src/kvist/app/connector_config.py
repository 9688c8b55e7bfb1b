"""What a connector was told in a foreign engine's own configuration, checked before anything is built.

    {"kvist_config": "kvist.toml", "kvist_tiers": ["dram=8GiB", "pool=redis://10.0.0.7:6379"]}

The file is one as `kvist serve --config` takes, with the settings below; a tier in the list replaces the file's tier of
the same name. Other names are the engine's business, unless they begin like ours.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Never

from pydantic import Field

from kvist.app.config_file import merged_tiers, read_config_file
from kvist.app.tier_config import SHOWN_MAX, TierConfig, checked
from kvist.app.tier_specs import DiskSpec, DramSpec, PoolSpec, read_tier_flag
from kvist.base.errors import ConfigError

FILE = "kvist_config"
TIERS = "kvist_tiers"
_OURS = "kvist"

_Label = Annotated[str, Field(min_length=1, max_length=255)]


class ConnectorConfig(TierConfig):
    """Settings of Kvist under a foreign engine; staging that is None follows from the model.

    Attributes:
        weights_revision: names the weights, whose files are then not read; None: they are.
        weights_epoch: what every engine has to find each other's blocks by: new weights in place, a new epoch.
    """

    weights_revision: _Label | None = None
    weights_epoch: _Label = "0"


def read_connector_config(fields: Mapping[str, object]) -> ConnectorConfig:
    """Reads Kvist's part of an engine's extra configuration.

    Args:
        fields: all of it, by name.

    Raises:
        ConfigError: naming the setting and the value, and what is wrong with it; or there are no tiers.
    """
    for name in fields:
        if str(name).startswith(_OURS) and name not in {FILE, TIERS}:
            raise ConfigError(f"{str(name)[:SHOWN_MAX]!r}: there is no such setting; there are {FILE} and {TIERS}")
    path = fields.get(FILE)
    listed = _listed(fields.get(TIERS, ()))
    file = {} if path is None else _file(path)
    of_file = file.pop("tiers", ())
    assert isinstance(of_file, tuple)
    given = {**file, "tiers": merged_tiers(of_file, listed, named=TIERS)}
    config = checked(ConnectorConfig, given, ("staging_memory",), lambda name: f"{path}: {name}")
    if not config.tiers:
        raise ConfigError(
            "there is nowhere to keep KV: name a file with [tiers.NAME] tables in kv_connector_extra_config, as in "
            f'{{"{FILE}": "/etc/kvist.toml"}}, or tiers, as in {{"{TIERS}": ["dram=8GiB"]}}'
        )
    return config


def _file(path: object) -> dict[str, object]:
    if not isinstance(path, str) or not path:
        _refuse(FILE, path, "give the path of a TOML file")
    return read_config_file(Path(path))


def _listed(texts: object) -> tuple[DramSpec | DiskSpec | PoolSpec, ...]:
    if not isinstance(texts, list | tuple):
        _refuse(TIERS, texts, 'give a list, as in ["dram=8GiB"]')
    for text in texts:
        if not isinstance(text, str):
            _refuse(TIERS, text, "write dram=SIZE, disk=DIRECTORY:SIZE or pool=URL")
    return tuple(read_tier_flag(text, named=TIERS) for text in texts)


def _refuse(name: str, value: object, remedy: str) -> Never:
    """Says of what kind a value is, and not the value: it may be a tier with a password in its URL."""
    raise ConfigError(f"{name} is of the wrong kind ({type(value).__name__}); {remedy}")
