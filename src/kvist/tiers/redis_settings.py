"""Where a Redis or Valkey server is and how to talk to it, read from a URL without ever showing the password."""

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from kvist.base.errors import ConfigError

_PORT = 6379
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_DATABASE = re.compile(r"[0-9]{1,9}", re.ASCII)
_UNIX_PATH_BYTES_MAX = 107
_FORMS = "redis://[user:password@]host[:port][/database], rediss:// for TLS, or unix:///path/of.sock[?db=database]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisServer:
    """One server, and who asks.

    Attributes:
        host, port: where it listens; unused when there is a `socket_path`.
        socket_path: of its Unix socket.
        database: its number.
        tls: whether the connection is encrypted and the server's certificate checked.
        username, password: of an ACL user; None: none is sent.
    """

    host: str = "127.0.0.1"
    port: int = _PORT
    socket_path: str | None = None
    database: int = 0
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """What messages call it: never with a name or a password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.socket_path or f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """How to use a server; refused with a `ConfigError` when it cannot work.

    Attributes:
        server: which one.
        ca_file: certificates (PEM) that vouch for the server; None: those of the system.
        certificate_file, key_file: of this client, where the server asks for one; the key is not encrypted.
        connect_timeout_s: longest wait for a connection to be accepted.
        timeout_s: longest wait for a round trip, over what its bytes need at 16 MiB/s.
        connections_max: open at once; one more caller waits for a free one.
        bytes_in_flight: of records asked for and not received yet, by one call.
        prefix: of all keys, so that a server may be shared; letters, digits, ``_``, ``.`` and ``-``.
    """

    server: RedisServer
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    connect_timeout_s: float = 1.0
    timeout_s: float = 5.0
    connections_max: int = 5
    bytes_in_flight: int = 4 * 2**20
    prefix: str = "kvist"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigError(f"{self.prefix[:80]!r} is no prefix of keys; use 1 to 64 of A-Z a-z 0-9 _ . -")
        for name, least, most in (
            ("connect_timeout_s", 0.001, 600.0),
            ("timeout_s", 0.001, 600.0),
            ("connections_max", 1, 256),
            ("bytes_in_flight", 1, 2**40),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} of a Redis tier is {value}; give a number from {least} to {most}")
        try:
            f"{self.server.username}{self.server.password}".encode()
        except UnicodeEncodeError:
            # `from None`: the cause shows the password.
            raise ConfigError(f"the user name or password for {self.server} is no text") from None
        if not self.server.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise ConfigError(f"certificates are given for {self.server}, which is asked without TLS; write rediss://")
        if self.server.tls:
            self._check_files()

    def _check_files(self) -> None:
        """Reads the files once, so that a wrong one stops the start and not every call."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if (self.certificate_file is None) != (self.key_file is None):
            raise ConfigError("a client certificate needs both certificate_file and key_file")
        if self.ca_file is not None:
            try:
                context.load_verify_locations(cafile=self.ca_file)
            except (OSError, ValueError) as error:
                raise ConfigError(f"cannot read certificates from ca_file {str(self.ca_file)!r}: {error}") from error
        if self.certificate_file is not None and self.key_file is not None:
            try:
                context.load_cert_chain(self.certificate_file, self.key_file, password="")  # no terminal is asked
            except (OSError, ValueError) as error:
                shown = f"{str(self.certificate_file)!r} and {str(self.key_file)!r}"
                raise ConfigError(f"cannot use {shown} as certificate and unencrypted key: {error}") from error


def parse_redis_url(url: str) -> RedisServer:
    """Reads where a server is and who asks; names and passwords may be percent-encoded.

    Raises:
        ConfigError: naming what is wrong, without the password.

    >>> str(parse_redis_url("rediss://kvist:secret@pool.example:6380/2"))
    'pool.example:6380'
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # `from None`: urllib's own message may hold a password that was taken for a port.
        raise ConfigError(f"{_shown(url)} has no valid host and port; write {_FORMS}") from None
    if any(ord(letter) < 32 or 0xD800 <= ord(letter) <= 0xDFFF for letter in url):
        raise ConfigError(f"{_shown(url)} contains characters that are no text; write {_FORMS}")
    match parts.scheme:
        case "redis" | "rediss":
            return _network_server(url, parts, _PORT if port is None else port)
        case "unix":
            return _local_server(url, parts)
        case _:
            raise ConfigError(f"{_shown(url)} is not the URL of a Redis server; write {_FORMS}")


def _network_server(url: str, parts: SplitResult, port: int) -> RedisServer:
    host = parts.hostname or ""
    if not _HOST.fullmatch(host) or port == 0:
        raise ConfigError(f"{_shown(url)} has no valid host and port; write {_FORMS}")
    if parts.query or parts.fragment:
        raise ConfigError(f"{_shown(url)} is followed by ? or #, which mean nothing here; write {_FORMS}")
    return RedisServer(
        host=host,
        port=port,
        database=_database(url, parts.path.removeprefix("/") or "0"),
        tls=parts.scheme == "rediss",
        username=_decoded(parts.username),
        password=_decoded(parts.password),
    )


def _local_server(url: str, parts: SplitResult) -> RedisServer:
    path = unquote(parts.path)
    if parts.hostname or not path.startswith("/") or "\0" in path:
        raise ConfigError(f"{_shown(url)} names no absolute path of a socket; write {_FORMS}")
    if len(os.fsencode(path)) > _UNIX_PATH_BYTES_MAX:
        raise ConfigError(f"the socket's path {path[:40]!r}... is longer than {_UNIX_PATH_BYTES_MAX} bytes")
    options = parse_qsl(parts.query, keep_blank_values=True)
    if parts.fragment or any(name != "db" for name, _ in options) or len(options) > 1:
        raise ConfigError(f"{_shown(url)} has options other than db; write {_FORMS}")
    return RedisServer(
        socket_path=path,
        database=_database(url, options[0][1] if options else "0"),
        username=_decoded(parts.username),
        password=_decoded(parts.password),
    )


def _database(url: str, text: str) -> int:
    if not _DATABASE.fullmatch(text):
        raise ConfigError(f"{_shown(url)} names no database by its number; write {_FORMS}")
    return int(text)


def _decoded(text: str | None) -> str | None:
    return unquote(text) if text else None


def _shown(url: str) -> str:
    """Scheme and host alone: anything else might be a password, or a part of one."""
    scheme, there, rest = url.partition("://")
    host = rest.rpartition("@")[2] if there else ""
    return repr(f"{scheme[:20]}{there}{re.split(r'[:/?#]', host)[0][:60]}" if there else "what was given")
