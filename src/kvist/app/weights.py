"""The digest of a model's weights: what tells two models of one name apart."""

import os
from collections.abc import Sequence
from pathlib import Path

from blake3 import blake3

from kvist.app.progress import Progress, Report, silent
from kvist.base.errors import ModelError


def weights_digest(directory: Path, report: Report = silent) -> str:
    """BLAKE3 over names and contents of the safetensors in a directory, in order of name; hexadecimal.

    Reads every byte, on all cores: about a second for each few gigabytes that the disk delivers.

    Raises:
        ModelError: a file cannot be read.
    """
    report(Progress(stage="Identifying weights"))
    return digest_of_files(sorted(directory.glob("*.safetensors"))).hex()


def digest_of_files(paths: Sequence[Path]) -> bytes:
    """BLAKE3 over names and contents of files, in this order; 32 bytes.

    Raises:
        ModelError: one cannot be read.
    """
    whole = blake3()
    for path in paths:
        try:
            content = blake3(max_threads=blake3.AUTO).update_mmap(path).digest()
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error}") from error
        name = os.fsencode(path.name)
        whole.update(len(name).to_bytes(4, "little") + name + content)
    return whole.digest()
