"""What a URL says is what is used; what cannot work is refused, and no password is ever shown."""

import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.base.errors import ConfigError
from kvist.tiers.redis_settings import RedisServer, RedisSettings, parse_redis_url
from real.redis import Certificates, binary, sign

HUSH = "pass-word_123456789"
P, ODD, NO_TEXT = "p", "p@/:", "\udc80"
TLS = RedisServer(tls=True)


@pytest.mark.parametrize(
    ("url", "server", "shown"),
    [
        ("redis://127.0.0.1:6379", RedisServer(), "127.0.0.1:6379"),
        ("redis://127.0.0.1", RedisServer(), "127.0.0.1:6379"),
        ("REDIS://127.0.0.1/", RedisServer(), "127.0.0.1:6379"),
        ("redis://pool.example:1/15", RedisServer(host="pool.example", port=1, database=15), "pool.example:1"),
        ("redis://[::1]:6380", RedisServer(host="::1", port=6380), "[::1]:6380"),
        ("rediss://h", RedisServer(host="h", tls=True), "h:6379"),
        ("redis://u:p@h", RedisServer(host="h", username="u", password=P), "h:6379"),
        ("redis://:p%40%2F%3a@h", RedisServer(host="h", password=ODD), "h:6379"),
        ("redis://u@h", RedisServer(host="h", username="u"), "h:6379"),
        ("unix:///run/redis.sock", RedisServer(socket_path="/run/redis.sock"), "/run/redis.sock"),
        (
            "unix://u:p@/run/a%20b.sock?db=3",
            RedisServer(socket_path="/run/a b.sock", database=3, username="u", password=P),
            "/run/a b.sock",
        ),
    ],
)
def test_a_url_says_where_and_who(url: str, server: RedisServer, shown: str) -> None:
    assert parse_redis_url(url) == server
    assert str(server) == shown


@pytest.mark.parametrize(
    "url",
    [
        "",
        HUSH,
        "redis://",
        f"redis://:{HUSH}",
        f"redis://:{HUSH}@",
        f"redis://:{HUSH}@host:0",
        f"redis://:{HUSH}@host:65536",
        f"redis://:{HUSH}@host:-1",
        f"redis://:{HUSH}@host:6379:6379",
        f"redis://:a/{HUSH}@host",
        f"redis://:a#{HUSH}@host",
        f"redis://:a://{HUSH}@host",
        f"redis://:[{HUSH}@host",
        f"redis://:{HUSH}@ho st",
        f"redis://:{HUSH}@host\0",
        f"redis://:{HUSH}@host\n",
        f"redis://:{HUSH}@host/db",
        f"redis://:{HUSH}@host/-1",
        f"redis://:{HUSH}@host/1/2",
        f"redis://:{HUSH}@host/{'9' * 40}",
        f"redis://host?password={HUSH}",
        f"redis://host#{HUSH}",
        f"redis://:{HUSH}\udc80@host",
        f"redis://:{HUSH}@{'h' * 300}",
        f"http://:{HUSH}@host",
        f"redis+sentinel://:{HUSH}@host",
        "unix://",
        "unix://relative.sock",
        f"unix:///run/x.sock?password={HUSH}",
        f"unix://:{HUSH}@/run/x%00.sock",
        f"unix://:{HUSH}@/run/x.sock?db=",
        f"unix://:{HUSH}@/run/x.sock?db=1&db=2",
        f"unix://:{HUSH}@/{'x' * 200}",
    ],
)
def test_a_url_that_cannot_work_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_redis_url(url)
    causes = [caught.value, caught.value.__cause__]
    assert not any(HUSH in f"{cause!r}{cause}" for cause in causes), caught.value
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.booleans())
def test_any_password_is_taken_and_none_is_shown(password: str, whole: bool) -> None:
    marked = f"{HUSH}{password}"
    url = f"redis://user:{quote(marked, safe='') if whole else marked}@host"
    try:
        server = parse_redis_url(url)
    except ConfigError as error:
        said, server = str(error), None
    else:
        said = f"{server}{server!r}{RedisSettings(server=server)!r}"
    assert HUSH not in said
    assert not whole or (server is not None and server.password == marked)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prefix": ""}, "''"),
        ({"prefix": "a:b"}, "a:b"),
        ({"prefix": "a*"}, "a\\*"),
        ({"prefix": "x" * 65}, "xxx"),
        ({"timeout_s": 0}, "timeout_s .* 0;"),
        ({"timeout_s": float("nan")}, "nan"),
        ({"timeout_s": float("inf")}, "inf"),
        ({"connect_timeout_s": -1}, "connect_timeout_s .* -1"),
        ({"connections_max": 0}, "connections_max .* 0"),
        ({"connections_max": 10_000}, "10000"),
        ({"bytes_in_flight": 0}, "bytes_in_flight"),
        ({"ca_file": Path("ca.pem")}, "rediss://"),
        ({"certificate_file": Path("a"), "key_file": Path("b")}, "rediss://"),
        ({"server": TLS, "ca_file": Path("no-such-file.pem")}, "no-such-file.pem"),
        ({"server": TLS, "ca_file": Path("a\0b")}, "x00b"),
        ({"server": TLS, "certificate_file": Path("a.pem")}, "key_file"),
        ({"server": TLS, "certificate_file": Path("no.pem"), "key_file": Path("no.key")}, "no.pem"),
        ({"server": RedisServer(password=NO_TEXT)}, "password"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        replace(RedisSettings(server=RedisServer()), **changes)


def test_certificates_are_read_at_the_start(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    files = {"certificate_file": made.client[0], "key_file": made.client[1]}
    assert RedisSettings(server=TLS, ca_file=made.authority[0], **files).server is TLS
    with pytest.raises(ConfigError, match=r"authority\.key"):
        RedisSettings(server=TLS, ca_file=made.authority[1])
    with pytest.raises(ConfigError, match=r"client\.crt.*server\.key"):
        RedisSettings(server=TLS, certificate_file=made.client[0], key_file=made.server[1])


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(tmp_path: Path) -> None:
    certificate, key = sign(tmp_path, "open")
    locked = tmp_path / "locked.key"
    lock = [binary("openssl"), "pkey", "-in", str(key), "-aes256", "-passout", "pass:sesame", "-out", str(locked)]
    subprocess.run(lock, check=True, capture_output=True)
    assert RedisSettings(server=TLS, certificate_file=certificate, key_file=key).key_file == key
    with pytest.raises(ConfigError, match="unencrypted key"):
        RedisSettings(server=TLS, certificate_file=certificate, key_file=locked)
