"""Where compiled kernels are kept from one process to the next, and when they are not to be trusted.

What is kept is machine code: a damaged file would end the process that runs it, at every start. So beside each lies the
digest of its bytes, and whatever does not match it is removed before the compiler looks. What cannot be kept or read is
compiled for this process alone: the directory is never needed.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numba


def _digest(*paths: Path) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()


# Taken when the sources are loaded: they may be others by the time that something is kept.
_STATE = _digest(*sorted(Path(__file__).parent.glob("*.py")))

_CODE = "*.nbc"
_DIGEST = ".sha256"


class Kept:
    """The directory of one state of this package.

    Attributes:
        directory: where it is; it may not be there yet.
    """

    def __init__(self, directory: Path) -> None:
        """Removes what is damaged and has the compiler keep its work here, and nowhere else."""
        self.directory = directory / _STATE[:16]
        with contextlib.suppress(OSError):
            for path in self._damaged():
                path.unlink(missing_ok=True)
        numba.config.CACHE_DIR = str(self.directory)
        # Its other places lie beside the sources or in the user's own directory, and know nothing of `_STATE`.
        numba.config.CACHE_LOCATOR_CLASSES = "UserProvidedCacheLocator"

    def sign(self) -> None:
        """Writes down the digests of what was kept since."""
        with contextlib.suppress(OSError):
            for path in self._unsigned():
                beside = path.with_suffix(f".{os.getpid()}")
                beside.write_text(_digest(path))
                beside.replace(path.with_suffix(_DIGEST))

    def _damaged(self) -> Iterator[Path]:
        """Code without its digest: another process that still compiles it will only find that it is not kept."""
        for path in self.directory.rglob(_CODE):
            signed = path.with_suffix(_DIGEST)
            if not signed.is_file() or signed.read_text() != _digest(path):
                yield path

    def _unsigned(self) -> Iterator[Path]:
        for path in self.directory.rglob(_CODE):
            signed = path.with_suffix(_DIGEST)
            if not signed.is_file() or signed.stat().st_mtime_ns < path.stat().st_mtime_ns:
                yield path


def kept_in(directory: Path) -> Kept | None:
    """The kernels kept in a private directory; None where it belongs to somebody else, whose code is not run.

    The compiler notices a changed kernel, but not a changed function that the kernel calls: so each state of this
    package has a directory of its own in there.
    """
    try:
        owner = directory.stat().st_uid
    except OSError:
        return None
    return Kept(directory) if owner == os.geteuid() else None
