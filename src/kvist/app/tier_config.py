"""What is said of tiers beside their places and sizes: the settings that `kvist serve` and the connectors share."""

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvist.app.tier_specs import PathText, TierSpec
from kvist.base.errors import ConfigError
from kvist.base.units import parse_bytes

MANY = 2**31 - 1
"""More than anything that is counted."""

StagingBytes = Annotated[int, Field(ge=2**20, le=2**40)]

SHOWN_MAX = 60
"""Characters of a refused value that are shown."""


class TierConfig(BaseModel):
    """Tiers, and what goes into them and comes out.

    Attributes:
        tiers: where KV is kept beyond the engine's own memory, fastest kind first.
        staging_memory: bytes that KV passes through on its way to and from tiers; None: not decided yet.
        cache_ttl_seconds: how long a block stays in tiers at most; None: until it is evicted.
        load_when: whether KV is loaded when that is expected to be cheaper than computing it, or always.
        cache_secret_file: holds what tenants' keys are made with; None: one in the cache directory.
        offload_prompt_only: whether KV of outputs stays out of the tiers.
        window_checkpoint_tokens: sliding-window KV is kept before every so many tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    tiers: tuple[TierSpec, ...] = ()
    staging_memory: StagingBytes | None = None
    cache_ttl_seconds: Annotated[float, Field(gt=0, le=1e10)] | None = None
    load_when: Literal["cheaper", "always"] = "cheaper"
    cache_secret_file: PathText | None = None
    offload_prompt_only: bool = False
    window_checkpoint_tokens: Annotated[int, Field(ge=1, le=MANY)] = 4096


Settings = TypeVar("Settings", bound=TierConfig)


def checked(
    kind: type[Settings], given: Mapping[str, object], sizes: Collection[str], shown: Callable[[str], str]
) -> Settings:
    """Settings by name, checked field by field.

    Args:
        kind: which settings there are.
        given: values; sizes may be text.
        sizes: names of those that are sizes.
        shown: what the operator calls a setting.

    Raises:
        ConfigError: naming the setting and the value, and what is wrong with it.
    """
    fields = dict(given)
    for name in sizes:
        if isinstance(text := fields.get(name), str):
            try:
                fields[name] = parse_bytes(text)
            except ConfigError as error:
                raise ConfigError(f"{shown(name)} {error}") from error
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = shown(str(first["loc"][0])[:SHOWN_MAX])
        if first["type"] == "extra_forbidden":  # nobody knows what was meant: it may be a misspelt password
            raise ConfigError(f"{name}: there is no such setting") from None
        value = repr(first["input"])
        value = value if len(value) <= SHOWN_MAX else f"{value[:SHOWN_MAX]}..."
        raise ConfigError(f"{name} {value}: {first['msg']}") from error
