"""Whether a directory can be a disk tier: looked at, opened for a moment where a tier is in it already, never filled.

What is not there is not made: only the tier itself does that.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kvist.app.doctor_findings import Finding, note, ok, problem
from kvist.app.tier_specs import DiskSpec
from kvist.base.errors import ConfigError
from kvist.base.units import format_bytes
from kvist.tiers.disk_directory import Directory

_LOCK = "lock"
_ELSEWHERE = "choose another directory for this tier"
_IGNORED = {"lost+found"}


def disk_findings(spec: DiskSpec, *, is_running: bool) -> Iterator[Finding]:
    """Looks at the directory of one tier.

    Args:
        spec: what the operator says of it.
        is_running: whether a vLLM that may have it was named.
    """
    check = f"tier {spec.name}"
    path = Path(spec.path)
    if not path.is_absolute():
        text = f"{spec.path} is relative to the directory that vLLM is started in"
        yield note(check, text, "give an absolute path, so that the next start finds the same")
    path = path.absolute()
    try:
        found = _directory(check, path, is_running=is_running)
        yield found
        if found.status != "problem":
            yield from _privacy(check, path)
            yield _room(check, spec, path)
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        yield problem(check, f"{spec.path} cannot be looked at: {error}", _ELSEWHERE)


def _directory(check: str, path: Path, *, is_running: bool) -> Finding:
    if not _is_there(path):
        above = _nearest(path)
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            return problem(check, f"{path} is not there and cannot be made in {above}", _ELSEWHERE)
        return ok(check, f"{path} is not there yet, and can be made")
    if refused := _not_ours(check, path):
        return refused
    holder = _holder(path)
    if holder is None:
        return _opened(check, path)
    if is_running:
        return ok(check, f"{path} is in use by process {holder}, which should be vLLM's engine")
    text = f"{path} is in use by process {holder}, and one process at a time may have it"
    return problem(check, text, "end that process, or give each vLLM of this host a directory of its own")


def _is_there(path: Path) -> bool:
    """Whether there is anything by that name, be it a link to nowhere."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _not_ours(check: str, path: Path) -> Finding | None:
    if path.is_symlink() or not path.is_dir():
        return problem(check, f"{path} is no directory", "name the directory itself, not a link or a file")
    owner, me = path.stat().st_uid, os.geteuid()
    if owner != me:
        text = f"{path} belongs to user {owner}, and user {me} runs this"
        return problem(check, text, f"run kvist doctor and vLLM as its owner, or {_ELSEWHERE}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return problem(check, f"{path} cannot be written", f"run: chmod 700 {path}")
    return None


def _opened(check: str, path: Path) -> Finding:
    """Takes a directory for a moment, if somebody has used it; an empty one stays as it is."""
    if not {each.name for each in path.iterdir()} - _IGNORED:
        return ok(check, f"{path} is empty, and can be written")
    try:
        Directory(path).close()
    except ConfigError as error:
        return problem(check, str(error))
    return ok(check, f"{path} is a tier's, and nobody uses it now")


def _holder(path: Path) -> str | None:
    """Which process has the directory's lock; None: nobody."""
    try:
        handle = os.open(path / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None  # absent, or of a kind that opening the directory complains about
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "unknown"
    except OSError:
        return None  # a file system without locks: opening the directory says so
    finally:
        os.close(handle)
    return None


def _privacy(check: str, path: Path) -> Iterator[Finding]:
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        text = f"{path} is open to other users until the tier closes it, and KV says a lot about its text"
        yield note(check, text, f"run: chmod 700 {path}")


def _room(check: str, spec: DiskSpec, path: Path) -> Finding:
    system = os.statvfs(_nearest(path))
    whole, free = system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize
    held = _bytes_in(path)
    asked, floor = format_bytes(spec.bytes), format_bytes(spec.free_min)
    if 0 < whole < spec.bytes:
        text = f"the file system of {path} has {format_bytes(whole)}, and the tier is to have {asked}"
        return problem(check, text, "give the tier less")
    room = max(0, free - spec.free_min) + held
    if room >= spec.bytes:
        return ok(check, f"there is room for {asked}, with {floor} left free")
    text = f"the tier can have {format_bytes(room)} of its {asked} before less than {floor} are free (free_min)"
    remedy = "free some space, or give the tier less"
    # A tier that was full and is at the floor goes on with what it has; one without anything never gets any.
    return note(check, text, remedy) if room > 0 else problem(check, text, remedy)


def _nearest(path: Path) -> Path:
    """The path, or whatever is there of what leads to it."""
    return next(each for each in (path, *path.parents) if each.exists())


def _bytes_in(path: Path) -> int:
    """What the files of a directory take."""
    if not path.is_dir():
        return 0
    with os.scandir(path) as entries:
        return sum(each.stat(follow_symlinks=False).st_blocks * 512 for each in entries)
