"""What files and SQLite raise, as errors of a tier."""

import errno
import os
import sqlite3

import pytest

from kvist.base.errors import TierError, TierFullError, TierUnavailableError
from kvist.tiers.disk_errors import FOREIGN, error_of, tier_error, translated


@pytest.mark.parametrize("code", sorted(errno.errorcode))
def test_every_number_of_the_system_has_an_error_that_names_it(code: int) -> None:
    error = error_of(code, tier="nvme")
    is_full = code in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    assert type(error) is (TierFullError if is_full else TierUnavailableError)
    assert error.tier == "nvme"
    assert errno.errorcode[code] in str(error)
    assert os.strerror(code) in str(error)


def test_an_error_of_the_system_without_a_number_is_one_of_the_disk() -> None:
    assert isinstance(tier_error(OSError("no number"), tier="nvme"), TierUnavailableError)


@pytest.mark.parametrize("kind", [each for each in vars(sqlite3).values() if isinstance(each, type)])
def test_every_error_of_sqlite_is_one_of_the_tier(kind: type) -> None:
    if issubclass(kind, Exception):
        assert issubclass(kind, (*FOREIGN, sqlite3.Warning))
    if issubclass(kind, sqlite3.Error):
        with pytest.raises(TierError, match="nvme: the index failed: oh no") as caught, translated(tier="nvme"):
            raise kind("oh no")
        assert isinstance(caught.value.__cause__, kind)


def test_a_full_index_is_told_apart() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA max_page_count = 1").fetchall()
    with pytest.raises(TierFullError, match="the index has no room"), translated(tier="nvme"):
        database.execute("CREATE TABLE t (a)")
    database.close()


def test_what_is_not_foreign_passes() -> None:
    with pytest.raises(ZeroDivisionError), translated(tier="nvme"):
        raise ZeroDivisionError
