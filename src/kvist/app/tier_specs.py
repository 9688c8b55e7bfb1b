"""What the operator says of each tier, on the command line or in a file, checked before anything is built.

    dram=4GiB                           host memory
    disk=/var/lib/kvist:40GiB           a directory, and everything in it together at most this large
    pool=redis://127.0.0.1:6379         a Redis or Valkey server

In a file the same are tables, which can say more: see `docs/how-to/keep-kv.md`. A tier's name is its kind unless the
table gives the kind.
"""

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from kvist.base.errors import ConfigError
from kvist.base.units import parse_bytes

Kind = Literal["dram", "disk", "pool"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_SHOWN_MAX = 60
_NAME = r"^[a-z][a-z0-9_-]{0,31}$"
_SECRET_FIELDS = ("password", "url")


def _size(value: object) -> object:
    """A size as text becomes bytes; what is neither is left for pydantic to refuse."""
    if not isinstance(value, str):
        return value
    try:
        return parse_bytes(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("a path has no NUL character")
    return value


Size = Annotated[int, BeforeValidator(_size), Field(ge=1, le=2**60, strict=True)]
PathText = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_no_nul)]


class FaultSpec(BaseModel):
    """A rehearsal: the tier fails now and then, so that an operator sees what that does. In files only.

    Attributes:
        one_in: on average one call in so many suffers something: errors of each kind, flipped bits, wrong lengths, torn
            writes, records of other keys, and delays.
        seed: decides which calls and what.
        delay_s: how long a delayed call takes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    one_in: Annotated[int, Field(ge=1, le=10**9, strict=True)]
    seed: Annotated[int, Field(ge=0, le=2**63, strict=True)] = 0
    delay_s: Annotated[float, Field(ge=0, le=3600)] = 0.0


class _Spec(BaseModel):
    """What every tier has.

    Attributes:
        name: in metrics, logs and `kvist cache`.
        tenant_bytes: how much of the tier one tenant may take; None: all of it.
        faults: makes the tier fail now and then; None: only when it really does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=_NAME)
    tenant_bytes: Size | None = None
    faults: FaultSpec | None = None


class DramSpec(_Spec):
    """Host memory; `bytes` is all that is taken."""

    kind: Literal["dram"] = "dram"
    bytes: Size


class DiskSpec(_Spec):
    """A directory of this server alone.

    Attributes:
        path: of the directory; made if missing.
        bytes: bound on everything in it, index included.
        free_min: bytes that must stay free on its file system.
    """

    kind: Literal["disk"] = "disk"
    path: PathText
    bytes: Size
    free_min: Size = 2**30


class PoolSpec(_Spec):
    """A Redis or Valkey server, whose memory is its own business.

    Attributes:
        url: `redis://`, `rediss://` (TLS) or `unix://`.
        username, password_file: of an ACL user; the file holds the password and nothing else.
        ca_file, cert_file, key_file: for TLS.
        timeout_s: for connecting, and for each answer.
        prefix: put before every key.
    """

    kind: Literal["pool"] = "pool"
    url: Annotated[str, Field(pattern=r"^(redis|rediss|unix)://", max_length=2048, repr=False)]  # may hold a password
    username: str | None = Field(default=None, max_length=255)
    password_file: PathText | None = None
    ca_file: PathText | None = None
    cert_file: PathText | None = None
    key_file: PathText | None = None
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 2.0
    prefix: str = Field(default="kvist", pattern=r"^[A-Za-z0-9_.-]{1,64}$")


TierSpec = Annotated[DramSpec | DiskSpec | PoolSpec, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[DramSpec | DiskSpec | PoolSpec] = TypeAdapter(TierSpec)


def read_tier_flag(text: str, *, named: str = "--tier") -> DramSpec | DiskSpec | PoolSpec:
    """Reads what follows `--tier`, or what else the operator writes it after.

    Raises:
        ConfigError: naming the value and what it should look like.
    """
    kind, equals, value = text.partition("=")
    if kind not in KINDS or not equals or not value:
        raise ConfigError(
            f"{named} {_shown(text, kind)}: write dram=SIZE, disk=DIRECTORY:SIZE or pool=redis://HOST:PORT"
        )
    fields: dict[str, object] = {"name": kind, "kind": kind}
    if kind == "dram":
        fields["bytes"] = value
    elif kind == "pool":
        fields["url"] = value
    else:
        path, colon, size = value.rpartition(":")
        if not colon:
            raise ConfigError(f"{named} {_shown(text, kind)}: say how large it may become, as in disk={value}:40GiB")
        fields |= {"path": path, "bytes": size}
    return _validated(fields, f"{named} {_shown(text, kind)}")


def read_tier_table(name: str, table: object) -> DramSpec | DiskSpec | PoolSpec:
    """Reads one `[tiers.NAME]` table of a configuration file.

    Raises:
        ConfigError: naming the field, the value and what is wrong with it.
    """
    where = f"[tiers.{name[:_SHOWN_MAX]}]"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is not a table of settings")
    fields = {"kind": name, **table, "name": name}
    if fields["kind"] not in KINDS:
        raise ConfigError(f"{where}: kind {str(fields['kind'])[:_SHOWN_MAX]!r} is not one of {', '.join(KINDS)}")
    return _validated(fields, where)


def _validated(fields: dict[str, object], where: str) -> DramSpec | DiskSpec | PoolSpec:
    try:
        return _ADAPTER.validate_python(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = [str(each) for each in first["loc"][1:]]
        shown = "" if set(place) & set(_SECRET_FIELDS) else _shown_input(first)
        # Without the cause: its text repeats the input, which may hold a password.
        raise ConfigError(f"{where}: {'.'.join(place)}{shown}: {first['msg']}") from None


def _shown_input(error: ErrorDetails) -> str:
    """A value that was refused, as part of a message; empty where it may be a secret.

    Of a field that nobody knows, nobody knows what was meant: it may be a misspelt password. What is not one value,
    such as a whole table, may hold one.
    """
    value = error["input"]
    if error["type"] == "extra_forbidden" or not isinstance(value, str | int | float):
        return ""
    text = repr(value)
    return f" {text}" if len(text) <= _SHOWN_MAX else f" {text[:_SHOWN_MAX]}..."


def _shown(text: str, kind: str) -> str:
    """A flag's value, shortened; what may hold a password is left out."""
    if kind == "pool" or "@" in text:
        return f"{kind[:_SHOWN_MAX]}=..."
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")
