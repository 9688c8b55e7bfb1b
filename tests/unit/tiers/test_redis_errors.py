"""Whatever the client or the network raises is one of the errors of a tier."""

import errno
import inspect
import socket
import ssl

import pytest
import redis.exceptions

from kvist.base.errors import TierError, TierFullError, TierTimeoutError, TierUnavailableError
from kvist.tiers.redis_errors import FOREIGN, tier_error, translated

FULL = {"OutOfMemoryError"}
LATE = {"TimeoutError"}
CLASSES = [each for _, each in inspect.getmembers(redis.exceptions, inspect.isclass) if issubclass(each, BaseException)]


def instance(kind: type[Exception]) -> Exception:
    """One as the client would make it; some read their message."""
    return kind("1 127.0.0.1:1")


@pytest.mark.parametrize("kind", CLASSES)
def test_no_exception_of_the_client_is_unmapped(kind: type[Exception]) -> None:
    assert issubclass(kind, FOREIGN)
    wanted = {True: TierFullError}.get(kind.__name__ in FULL, TierUnavailableError)
    wanted = TierTimeoutError if kind.__name__ in LATE else wanted
    with pytest.raises(TierError) as caught, translated(tier="pool", server="host:1"):
        raise instance(kind)
    assert type(caught.value) is wanted
    assert caught.value.tier == "pool"
    assert isinstance(caught.value.__cause__, kind)
    assert "host:1" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), TierUnavailableError),
        (ConnectionResetError(), TierUnavailableError),
        (BrokenPipeError(), TierUnavailableError),
        (socket.gaierror(-2, "unknown"), TierUnavailableError),
        (ssl.SSLCertVerificationError("no"), TierUnavailableError),
        (ssl.SSLEOFError(), TierUnavailableError),
        (OSError(errno.EMFILE, "too many files"), TierUnavailableError),
        (TimeoutError("late"), TierTimeoutError),
        (socket.timeout(), TierTimeoutError),  # noqa: UP041  the name under which sockets document it
    ],
)
def test_errors_of_the_network_are_mapped(error: Exception, wanted: type[TierError]) -> None:
    assert type(tier_error(error, tier="pool", server="host:1")) is wanted


def test_what_a_server_says_is_shown_on_one_line_and_shortened() -> None:
    error = redis.exceptions.ResponseError("ERR a\r\nb " + "x" * 10_000)
    shown = str(tier_error(error, tier="pool", server="host:1"))
    assert "ERR a b x" in shown
    assert len(shown) < 400
    assert "\n" not in shown


def test_a_full_server_comes_with_the_remedy() -> None:
    error = redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
    assert "maxmemory-policy" in str(tier_error(error, tier="pool", server="host:1"))


def test_our_own_mistakes_pass() -> None:
    with pytest.raises(AssertionError), translated(tier="pool", server="host:1"):
        raise AssertionError
