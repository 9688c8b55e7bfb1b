"""What memory this process takes and may still take, as the system tells it.

Reads /proc and the control group's files; decides nothing (`kvist.planner.budget` does).
"""

import contextlib
import ctypes
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from kvist.base.units import Bytes
from kvist.planner.budget import free_memory

_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # what proc(5) wants written to start the resident peak anew
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """One control group's limit and use in bytes; page cache that can be dropped is not counted as used."""

    limit: int
    used: int


def bytes_free(cgroups: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> Bytes:
    """Bytes that this process may still take: the smallest that the system and its control groups leave it."""
    available = psutil.virtual_memory().available
    left = [free_memory(available, group.limit, group.used) for group in _limits(cgroups, membership)]
    return min(left, default=Bytes(available))


def bytes_resident() -> Bytes:
    """Bytes that this process has in memory now."""
    return Bytes(psutil.Process().memory_info().rss)


def give_back() -> None:
    """Gives the system what was freed here and kept for later, where the C library can; elsewhere it stays."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def start_peak() -> None:
    """Starts the resident peak anew, where the system can; elsewhere the peak is the process's whole life's."""
    # Absent outside Linux and from small kernels, and not writable in some sandboxes.
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text(_RESET_PEAK)


def bytes_peak() -> Bytes:
    """The most bytes this process has had in memory since `start_peak`."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return Bytes(int(line.split()[1]) * 1024)
    unit = 1 if sys.platform == "darwin" else 1024
    return Bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


class HostMeter:
    """Measures what this process takes of the host's memory; the real `kvist.app.workspace.Meter` of a CPU."""

    def __init__(self) -> None:
        self._before = Bytes(0)

    def start(self) -> None:
        """What is taken from now on counts, also where it was taken before and given back."""
        give_back()
        self._before = bytes_resident()
        start_peak()

    def taken(self) -> Bytes:
        """The most bytes taken at once since `start`, given back or not."""
        return Bytes(max(0, bytes_peak() - self._before))


def _limits(cgroups: Path, membership: Path) -> Iterator[GroupMemory]:
    """The limits that hold for this process: of its own control group and of all above it."""
    for line in (_text(membership) or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "", "")[:3]
        if not path.startswith("/"):
            continue  # no line of this file
        if controllers == "":
            root, names = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = root / path.lstrip("/")
        for directory in (own, *own.parents):
            if directory.is_relative_to(root) and (found := _read(directory, names)) is not None:
                yield found


def _read(directory: Path, names: tuple[str, str, str]) -> GroupMemory | None:
    """The limit of one control group; None when it has none, or none that can be read."""
    limit_file, used_file, droppable = names
    # "max", an absent file and a file we may not read all mean that nothing is known to bound us here.
    limit = _count(_text(directory / limit_file))
    if limit is None or limit >= _UNLIMITED:
        return None
    # A limit bounds us even where the rest can not be read.
    used = _count(_text(directory / used_file)) or 0
    rows = (line.split() for line in (_text(directory / "memory.stat") or "").splitlines())
    dropped = next((_count(row[1]) for row in rows if len(row) == 2 and row[0] == droppable), 0) or 0
    return GroupMemory(limit=limit, used=max(0, used - dropped))


def _text(path: Path) -> str | None:
    """A file of the system's; None when it is absent or not for us."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return None


def _count(text: str | None) -> int | None:
    """A number of bytes as the system writes it; None for anything else."""
    shown = (text or "").strip()
    return int(shown) if shown.isascii() and shown.isdigit() and len(shown) <= 20 else None
