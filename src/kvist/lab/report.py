"""A benchmark as one JSON document: who measured what, every request, and the summary.

Names carry units and then the qualifier (`ttft_s_p50`); absent values are null; NaN cannot occur. A document is
written whole or not at all.
"""

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import kvist
from kvist.base.errors import ConfigError
from kvist.lab.dialect import Completions
from kvist.lab.machine import Machine, describe_machine, git_commit

SCHEMA_VERSION = 1
"""Goes up when a name changes its meaning or goes away; new names do not raise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a document comes from.

    Attributes:
        command: the command line that made it.
        started_at: UTC, ISO 8601.
        seed: what the workload followed from.
        machine: where the client ran.
        git_commit: the revision of Kvist; None when it is not a checkout.
    """

    command: tuple[str, ...]
    started_at: str
    seed: int
    machine: Machine
    git_commit: str | None


def document(
    name: str,
    provenance: Provenance,
    completions: Completions,
    *,
    settings: Mapping[str, object],
    results: tuple[Sequence[object], object],
) -> dict[str, object]:
    """The document of one run.

    Args:
        name: the benchmark, "ttft" or "serve".
        provenance: where it comes from.
        completions: the server that was measured, and how it was asked.
        settings: what was asked for, JSON values.
        results: rows (dataclasses, one per request) and summary (a dataclass, or several).
    """
    rows, summary = results
    return {
        **_origin(name, provenance),
        "server": {"url": completions.client.url, "model": completions.model.name}
        | {"max_model_len": completions.model.tokens_max, "asked_in": flat(completions.dialect)},
        "settings": dict(settings),
        "requests": [flat(row) for row in rows],
        "summary": [flat(part) for part in summary] if isinstance(summary, tuple) else flat(summary),
    }


def script_provenance(script: str, arguments: Sequence[str], *, seed: int) -> Provenance:
    """Where the document of a script under `bench` comes from, if it begins now.

    Args:
        script: its path within the repository.
        arguments: as given, without anything secret.
        seed: what its workload follows from.
    """
    return Provenance(
        command=("python", script, *arguments),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        machine=describe_machine(),
        git_commit=git_commit(),
    )


def script_document(
    name: str, provenance: Provenance, settings: Mapping[str, object], results: Mapping[str, Sequence[object]]
) -> dict[str, object]:
    """The document of one script under `bench`.

    Args:
        name: of the script, without its suffix.
        provenance: where it comes from.
        settings: its options; tuples and paths become lists and texts.
        results: dataclasses by what they are, such as "samples" and "summary".
    """
    return {
        **_origin(name, provenance),
        "settings": {key: _json_value(value) for key, value in settings.items()},
        **{key: [flat(each) for each in records] for key, records in results.items()},
    }


def flat(record: object) -> dict[str, object]:
    """A dataclass as JSON values; fields of a nested one are joined to its name, as in `ttft_s_p50`."""
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        raise TypeError(f"{type(record).__name__} is not a record")
    values: dict[str, object] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            values |= {f"{field.name}_{key}": inner for key, inner in flat(value).items()}
        else:
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return values


def check_writable(path: Path) -> None:
    """Finds out, before a long run, whether a document could be written there.

    Raises:
        ConfigError: it could not; says why.
    """
    try:
        if not path.name or "\0" in str(path):
            raise ConfigError(f"{str(path)!r} names no file; --json takes a file")
        if path.is_dir():
            raise ConfigError(f"{str(path)!r} is a directory; --json takes a file")
        if path.exists() and not path.is_file():
            raise ConfigError(f"{str(path)!r} is no regular file, and writing replaces it; choose another --json")
        beside = _beside(path)
        beside.touch(exist_ok=False)
        beside.unlink()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes a document whole or not at all; whatever was there before is replaced.

    Raises:
        ConfigError: the disk is full or the place is gone.
    """
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    beside = _beside(path)
    try:
        try:
            with beside.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error


def _origin(name: str, provenance: Provenance) -> dict[str, object]:
    """What every document begins with."""
    return {
        "schema": f"kvist.bench.{name}",
        "schema_version": SCHEMA_VERSION,
        "kvist_version": kvist.__version__,
        **{key: value for key, value in flat(provenance).items() if not key.startswith("machine")},
        "machine": flat(provenance.machine),
    }


def _json_value(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _beside(path: Path) -> Path:
    """A new name in the same directory, where a rename is atomic."""
    return path.with_name(f".kvist-{secrets.token_hex(8)}.tmp")
