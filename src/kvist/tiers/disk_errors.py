"""The one place where what the operating system and SQLite raise becomes an error of the disk tier."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from kvist.base.errors import TierError, TierFullError, TierUnavailableError

FOREIGN = (OSError, sqlite3.Error)
"""Everything that files and the index may raise."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system answers when there is no room."""

_FULL_REMEDY = "free some space there, or give the tier a smaller budget"


def tier_error(error: Exception, *, tier: str) -> TierError:
    """What an error of the file system or of the index means for the tier's user.

    Args:
        error: one of `FOREIGN`.
        tier: the tier's name.
    """
    if isinstance(error, OSError):
        return error_of(error.errno or errno.EIO, tier=tier)
    message = " ".join(str(error).split()) or type(error).__name__
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return TierFullError(f"the index has no room: {message} ({_FULL_REMEDY})", tier=tier)
    return TierUnavailableError(f"the index failed: {message}", tier=tier)


def error_of(code: int, *, tier: str) -> TierError:
    """The same for a bare error number of the operating system."""
    if code in FULL:
        return TierFullError(f"the disk has no room: {describe(code)} ({_FULL_REMEDY})", tier=tier)
    return TierUnavailableError(f"the disk failed: {describe(code)}", tier=tier)


def describe(code: int) -> str:
    """An error number in words, with its name.

    >>> describe(5)
    'Input/output error (EIO)'
    """
    return f"{os.strerror(code)} ({errno.errorcode.get(code, code)})"


@contextmanager
def translated(*, tier: str) -> Iterator[None]:
    """Turns whatever of `FOREIGN` happens inside into an error of the tier."""
    try:
        yield
    except FOREIGN as error:
        raise tier_error(error, tier=tier) from error
