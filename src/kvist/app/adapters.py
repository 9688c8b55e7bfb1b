"""Which adapter a name stands for: the digest of its files, since whoever hashes its name alone mixes up two contents.

An adapter whose files have changed since they were first seen cannot be told apart any more: nobody knows which of both
an engine has loaded. Neither can one whose files are not here. Both are for the caller to leave alone.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

_log = logging.getLogger(__name__)

_FILES_MAX = 64
_PIECE_BYTES = 2**20
_KNOWN_MAX = 4096
"""Adapters remembered; of more, those that come later are left alone."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Of an adapter's files: name, inode, bytes and time of change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    stamp: Stamp
    digest: bytes | None


class Adapters:
    """Digests of adapters, each read once."""

    def __init__(self, applied: str = "") -> None:
        """Starts with none.

        Args:
            applied: how the engine applies them: one that leaves out parts of an adapter's files computes other KV.
        """
        self._applied = applied.encode()
        self._known: dict[tuple[str, str], _Known] = {}

    def digest(self, name: str, path: str) -> bytes | None:
        """32 bytes that stand for the files of an adapter; None: it cannot be told apart.

        Costs a look at each file, and reading all of them the first time.

        Args:
            name: as requests call it.
            path: of the directory that it was loaded from.
        """
        stamp = _stamp(path)
        known = self._known.get((name, path))
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                return None
            digest = _read(path, stamp)
            known = _Known(stamp=stamp, digest=None if digest is None else self._as_applied(digest))
            self._known[name, path] = known
            if known.digest is None:
                _log.warning("adapter %r: its files cannot be read at %r; its requests bypass the cache", name, path)
        elif known.digest is not None and known.stamp != stamp:
            _log.warning(
                "adapter %r: its files at %r have changed; its requests bypass the cache from now on", name, path
            )
            self._known[name, path] = known = _Known(stamp=stamp, digest=None)
        return known.digest

    def _as_applied(self, digest: bytes) -> bytes:
        return blake3(b"adapter" + digest + self._applied).digest()


def _stamp(path: str) -> Stamp:
    """What tells whether files have changed; empty where there is nothing to read."""
    if not path:
        return ()
    try:
        files = sorted(each for each in _directory(path).iterdir() if each.is_file())
        if len(files) > _FILES_MAX:
            return ()
        stats = [(each.name, each.stat()) for each in files]
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a home of nobody's
        return ()
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _content(path: Path) -> bytes:
    """The digest of a file; not mapped, since whoever shortens a file that is mapped ends the process that reads it."""
    content = blake3()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            content.update(piece)
    return content.digest()


def _directory(path: str) -> Path:
    """As vLLM takes it."""
    return Path(path).expanduser()


def _read(path: str, stamp: Stamp) -> bytes | None:
    if not stamp:
        return None
    whole = blake3()
    try:
        for name, *_ in stamp:
            encoded = os.fsencode(name)
            whole.update(len(encoded).to_bytes(4, "little") + encoded + _content(_directory(path) / name))
    except OSError:
        return None
    digest = whole.digest()
    # What changed while it was read may be neither.
    return digest if _stamp(path) == stamp else None
