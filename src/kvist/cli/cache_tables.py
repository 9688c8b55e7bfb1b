"""The answers of `kvist cache` as tables. Whatever is shown is escaped: names and reasons come from elsewhere."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from kvist.base.errors import KvistError
from kvist.base.units import format_bytes

Shown = Table | str
Json = dict[str, Any]

_LEDGER = ("stored", "resident", "evicted", "expired", "purged", "quarantined", "lost")
_USE = ("queried", "hit", "miss", "loaded", "load_failures", "late", "declined")
_OUTCOMES = ("done", "damaged", "absent", "left")
_HASH_DIGITS = 16


def shown(verb: str, answer: Json) -> Iterator[Shown]:
    """What to print of an answer, in order.

    Raises:
        KvistError: it is none that this version understands.
    """
    try:
        match verb:
            case "tiers":
                yield from _tiers(answer)
            case "list" | "show":
                yield from _blocks(answer)
            case "explain":
                yield from _explanation(answer)
            case _:
                yield from _outcomes(answer)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise KvistError(f"the answer makes no sense ({error!r}); is the server of another version?") from error


def _tiers(answer: Json) -> Iterator[Shown]:
    held = _table("Tiers", ("tier", "breaker", "bytes", "of", *_LEDGER))
    used = _table("Use", ("tier", *_USE))
    for row in answer["tiers"]:
        sizes = (_size(row["bytes_used"]), _size(row["bytes_max"]))
        held.add_row(escape(row["name"]), escape(row["breaker"]), *sizes, *(f"{row[name]:,}" for name in _LEDGER))
        used.add_row(escape(row["name"]), *(f"{row[name]:,}" for name in _USE))
    yield held
    yield used


def _blocks(answer: Json) -> Iterator[Shown]:
    columns = ("hash", "tier", "group", "bytes", "tenant", "namespace", "created", "expires", "pinned")
    table = _table("Blocks", columns)
    for row in answer["blocks"]:
        tenant = "default" if row["default_tenant"] else row["tenant"][:8]
        table.add_row(
            escape(row["hash"][:_HASH_DIGITS]),
            escape(row["tier"]),
            str(int(row["group"])),
            format_bytes(row["bytes"]),
            escape(tenant),
            escape(row["namespace"][:8]),
            _time(row["created_unix_s"]),
            "never" if row["expires_unix_s"] is None else _time(row["expires_unix_s"]),
            "yes" if row["pinned"] else "",
        )
    yield table
    if answer["more"]:
        yield "There are more; --limit shows them."
    for error in answer["errors"]:
        yield f"{escape(error['tier'])}: {escape(error['error'])}"


def _explanation(answer: Json) -> Iterator[Shown]:
    cached = sum(source["tokens"] for source in answer["sources"])
    yield f"{answer['tokens']:,} tokens, of which {cached:,} are cached."
    sources = _table("Cached tokens by tier", ("tier", "tokens", "bytes to load"))
    for source in answer["sources"]:
        sources.add_row(escape(source["tier"]), f"{source['tokens']:,}", format_bytes(source["bytes_loaded"]))
    yield sources
    yield f"The cached prefix ends there: {escape(answer['prefix_end'])}"
    decision = answer["decision"]
    if decision is None:
        yield "No tier was asked."
        return
    yield escape(decision["reason"])
    options = _table("Options", ("", "tokens", "from", "load ms", "prefill ms", "total ms"))
    for option in decision["options"]:
        origin = ", ".join(f"{source['tier']} {source['tokens']:,}" for source in option["sources"])
        times = (f"{option[name]:,.3f}" for name in ("load_ms", "prefill_ms", "total_ms"))
        mark = "chosen" if option == decision["chosen"] else ""
        options.add_row(mark, f"{option['tokens']:,}", escape(origin), *times)
    yield options


def _outcomes(answer: Json) -> Iterator[Shown]:
    rows, unknown = answer["tiers"], answer["unknown"]
    carried = any("to" in row for row in rows)
    columns = (*(("from", "to") if carried else ("tier",)), "chosen", *_OUTCOMES)
    table = _table("Blocks", columns)
    errors = []
    for row in rows:
        where = [row.get("from", row.get("tier", "")), row.get("to", "")] if carried else [row["tier"]]
        if "error" in row:
            errors.append(f"{escape(where[0])}: {escape(row['error'])}")
        else:
            counts = (f"{row[name]:,}" if name in row else "" for name in ("chosen", *_OUTCOMES))
            table.add_row(*map(escape, where), *counts)
    yield table
    yield from errors
    if unknown:
        yield f"No tier has {escape(', '.join(unknown))}."


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        is_text = column in {"tier", "from", "to", "hash", "tenant", "namespace", "breaker", "", "pinned"}
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column == "hash")
    return table


def _size(value: int | None) -> str:
    return "" if value is None else format_bytes(value)


def _time(unix_s: float) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OSError, OverflowError, ValueError):
        return f"{unix_s:g} s"  # a calendar that was wrong
