"""Where the tiers of a test keep what they have: directories, a pool, and the secret that makes keys."""

from dataclasses import dataclass, field
from pathlib import Path

from kvist.tiers.faulty import seeded
from real.redis import RedisProcess

TIERS = ("dram", "disk", "pool")

RECORDING = "recording"
"""The setting, beside Kvist's, that says where calls are written down."""

_KINDS_OF_FAULT = 10
"""That a tier which is told to fail has; the last of them is to be late."""

_RARELY = 500


def late_read(delay_s: float) -> str:
    """Faults of a tier whose first read is so late, and to which nothing else happens for a long time."""
    for seed in range(10**6):
        plan = seeded(seed, list(range(_KINDS_OF_FAULT)), one_in=_RARELY)
        verbs = ("read", "find", "write", "delete", "keep", "entries")
        struck = {(verb, number): plan(verb, number) for verb in verbs for number in range(40)}
        if struck.pop(("read", 0)) == _KINDS_OF_FAULT - 1 and set(struck.values()) == {None}:
            return f"one_in = {_RARELY}, seed = {seed}, delay_s = {delay_s}"
    raise AssertionError("no seed does that")


@dataclass(frozen=True, slots=True)
class Place:
    """One place; servers that are given the same one find what the others left.

    Attributes:
        folder: of directories and files.
        redis: the pool.
    """

    folder: Path
    redis: RedisProcess
    _written: list[Path] = field(default_factory=list)

    def disk(self, name: str = "tier") -> Path:
        """The directory of a disk tier."""
        return self.folder / name

    def kvist(self, *tiers: str, disk: str = "tier", faults: str = "", lines: str = "") -> dict[str, object]:
        """What vLLM hands to Kvist.

        Args:
            tiers: which there are.
            disk: names the disk tier's directory.
            faults: of every tier, as in the inside of a TOML table; empty: none.
            lines: more settings.
        """
        tables = {
            "dram": 'bytes = "512MiB"',
            "disk": f'path = "{self.disk(disk)}"\nbytes = "2GiB"',
            "pool": f'url = "redis://127.0.0.1:{self.redis.port}"',
        }
        rehearsal = f"faults = {{{faults}}}\n" if faults else ""
        text = f'load_when = "always"\ncache_secret_file = "{self.folder / "secret"}"\n{lines}\n'
        text += "\n".join(f"[tiers.{tier}]\n{tables[tier]}\n{rehearsal}" for tier in tiers)
        path = self.folder / f"kvist-{len(self._written)}.toml"
        path.write_text(text, encoding="utf-8")
        self._written.append(path)
        return {"kvist_config": str(path)}
