"""The one place where what the Redis client and the network raise becomes an error of a tier."""

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import (
    ChildDeadlockedError,
    IncorrectPolicyType,
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from kvist.base.errors import TierError, TierFullError, TierTimeoutError, TierUnavailableError

FOREIGN = (RedisError, RedisClusterException, ChildDeadlockedError, IncorrectPolicyType, OSError)
"""Everything that the client and the socket below it may raise; TLS errors and time-outs are kinds of `OSError`."""

_MESSAGE_MAX = 300


def tier_error(error: Exception, *, tier: str, server: str) -> TierError:
    """What an error of the client means for the tier's user.

    Args:
        error: one of `FOREIGN`.
        tier: the tier's name.
        server: what to call the server; holds no password.
    """
    said = " ".join(str(error).split())[:_MESSAGE_MAX] or type(error).__name__
    match error:
        case OutOfMemoryError():
            remedy = "raise its maxmemory, or let it evict with maxmemory-policy allkeys-lru"
            return TierFullError(f"Redis at {server} is full: {said} ({remedy})", tier=tier)
        case TimeoutError() | RedisTimeoutError():
            return TierTimeoutError(f"Redis at {server} did not answer in time: {said}", tier=tier)
        case _:
            return TierUnavailableError(f"Redis at {server}: {said}", tier=tier)


@contextmanager
def translated(*, tier: str, server: str) -> Iterator[None]:
    """Turns whatever of `FOREIGN` happens inside into an error of the tier."""
    try:
        yield
    except FOREIGN as error:
        raise tier_error(error, tier=tier, server=server) from error
