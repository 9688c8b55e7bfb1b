"""What a process inside vLLM knows of the system it runs on, and how it speaks there."""

import logging
from pathlib import Path

from kvist.base.errors import ConfigError


def running_system() -> str:
    """Names this boot of this machine and this container; processes of one name find each other by number.

    Raises:
        ConfigError: the system does not say.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot tell which system this is: {error}; Kvist under vLLM needs Linux with /proc"
        ) from error


def speak_as(other: logging.Logger) -> None:
    """Lets what Kvist logs appear where and as an engine's own log does; what is configured already stays."""
    ours = logging.getLogger("kvist")
    if ours.handlers or not other.handlers:
        return
    for handler in other.handlers:
        ours.addHandler(handler)
    ours.setLevel(other.level)
    ours.propagate = other.propagate
