"""Whether the secret that tenants' keys are made with is the one that the tiers were filled under. Makes none.

Hosts that share a pool find each other's blocks only with the same secret. Nobody needs to show it for that to be
checked: the fingerprint says whether two are equal, and nothing else.
"""

import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from blake3 import blake3

from kvist.app.doctor_findings import Finding, note, ok, problem
from kvist.app.secret import load_secret, secret_path
from kvist.base.errors import ConfigError

CHECK = "secret"
_CONTEXT = "kvist 2026 fingerprint of a secret v1"
_FINGERPRINT_BYTES = 6


def secret_findings(
    named: str | None, kinds: Collection[str], environment: Mapping[str, str], *, is_filled: bool
) -> Iterator[Finding]:
    """Looks at the secret.

    Args:
        named: `cache_secret_file`; None: the one in the cache directory.
        kinds: of the tiers.
        environment: says where the cache directory is.
        is_filled: whether a disk tier was used before.
    """
    try:
        path = secret_path(named, environment)
        is_there = path.exists() or path.is_symlink()
    except (OSError, ValueError, ConfigError) as error:
        yield problem(CHECK, f"the secret cannot be looked for: {error}", "give cache_secret_file a path")
        return
    if not is_there:
        yield from _missing(path, kinds, is_filled=is_filled)
        return
    try:
        secret = load_secret(path)
    except ConfigError as error:
        yield problem(CHECK, str(error))
        return
    mark = fingerprint(secret)
    if "pool" not in kinds:
        yield ok(CHECK, f"{path} is there and private; its fingerprint is {mark}")
    elif named is None:
        text = f"{path} is this host's own (fingerprint {mark}): others that share the pool need the same"
        yield note(CHECK, text, "copy it to them with mode 0600, and name it with cache_secret_file everywhere")
    else:
        text = f"{path} has the fingerprint {mark}; where it is another, nothing that this host stored is found"
        yield note(CHECK, text, "compare it with what kvist doctor says on the other hosts")


def fingerprint(secret: bytes) -> str:
    """Stands for a secret in messages; whoever has it cannot tell the secret."""
    return blake3(secret, derive_key_context=_CONTEXT).hexdigest(_FINGERPRINT_BYTES)


def _missing(path: Path, kinds: Collection[str], *, is_filled: bool) -> Iterator[Finding]:
    if is_filled:
        text = f"there is no secret {path}, and one made anew finds nothing of what the disk has"
        yield problem(CHECK, text, "put back the secret that this vLLM had before, or empty the directory")
    elif "pool" in kinds:
        text = f"there is no secret {path}: one is made at the start, and with it this host finds nothing of others"
        yield note(CHECK, text, "copy the secret of a host that shares the pool, with mode 0600, and name it")
    else:
        yield ok(CHECK, f"there is no secret {path} yet; one is made at the start")
    above = next(each for each in path.parents if each.exists())
    if above == path.parent and stat.S_IMODE(above.stat().st_mode) & 0o022:
        yield note(CHECK, f"others may write in {above}, and put a secret of theirs there", f"run: chmod go-w {above}")
