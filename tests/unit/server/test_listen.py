import socket

import pytest

from kvist.base.errors import ConfigError
from kvist.server.listen import listen


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_system_chooses_a_port_for_zero(host: str) -> None:
    with listen(host, 0) as listener:
        address, port = listener.getsockname()[:2]
        assert address in {"127.0.0.1", "::1"}
        with socket.create_connection((address, port)):
            assert port > 0


def test_one_address_is_bound_and_no_other() -> None:
    with listen("127.0.0.1", 0) as listener, pytest.raises(OSError):  # noqa: PT011  # refused in several ways
        socket.create_connection(("127.0.0.2", listener.getsockname()[1]), timeout=5)


def test_a_port_in_use_is_named() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"'127.0.0.1' port {port}.*choose another"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("", 0),
        ("192.0.2.1", 0),
        ("no such host", 0),
        ("x" * 300, 0),
        ("127.0.0.1", 70_000),
        ("127.0.0.1", -1),
        ("127.0.0.1", 10**30),
        ("\x00", 0),
        ("ü" * 70, 0),
    ],
)
def test_an_address_that_can_not_be_is_refused(host: str, port: int) -> None:
    with pytest.raises(ConfigError):
        listen(host, port).close()
