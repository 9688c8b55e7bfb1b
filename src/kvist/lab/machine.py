"""What ran the benchmark: processor, memory, Python, and the revision of Kvist."""

import os
import platform
import shutil
import subprocess  # to ask git, with fixed arguments
from dataclasses import dataclass
from pathlib import Path

import psutil

import kvist

_GIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The client's side of a measurement; the server's too when it runs on the same machine.

    Attributes:
        cpu_model: the processor's name.
        cores: logical processors; cores_usable: those this process may use.
        memory_bytes: of the machine, whatever a container allows.
        system, python: names and versions.
    """

    cpu_model: str
    cores: int
    cores_usable: int
    memory_bytes: int
    system: str
    python: str


def describe_machine() -> Machine:
    """Asks the operating system."""
    cores = os.cpu_count() or 1
    return Machine(
        cpu_model=_cpu_model(),
        cores=cores,
        cores_usable=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
    )


def git_commit() -> str | None:
    """Commit of the checkout that Kvist runs from, with "-dirty" when its files differ from it.

    None outside a checkout, which an installed package is, and where git is missing.
    """
    package = Path(kvist.__file__).resolve().parent
    git = shutil.which("git")
    if git is None:
        return None
    top = _ask_git(git, package, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() / "src" / "kvist" != package:
        return None  # somebody else's repository that an environment happens to lie in
    commit = _ask_git(git, package, "rev-parse", "HEAD")
    changed = _ask_git(git, package, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if commit and changed else commit


def _ask_git(git: str, folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - arguments are fixed words and our own folder; no shell
            [git, "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.processor() or "unknown"
