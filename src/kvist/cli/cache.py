"""`kvist cache`: the flags. What the commands do is in `cache_run`, imported when one runs."""

import argparse

_VERBS: tuple[tuple[str, str, str], ...] = (
    ("pin", "keep blocks from being evicted", "Blocks that are pinned may still expire and be purged."),
    ("unpin", "let blocks be evicted again", "Takes back a pin."),
    ("prefetch", "copy blocks to a tier from wherever they are", "Blocks that are there already stay as they are."),
    ("move", "move blocks from one tier to another", "What arrived is removed from where it was."),
    ("copy", "copy blocks from one tier to another", "Blocks that are there already stay as they are."),
    ("purge", "forget blocks", "What is purged is computed again when it is needed."),
    ("verify", "read blocks and check every byte", "What is damaged is removed. Status 1 when something was."),
)
_CARRIERS = ("move", "copy")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command and its options; loads nothing heavy."""
    cache = subparsers.add_parser(
        "cache",
        help="look at, move and remove the KV in the tiers",
        description=(
            "Looks at the KV in the tiers of a running server and changes it, over a socket that only its user can "
            "reach. With --tier it opens tiers of a server that does not run. The server is the only one that runs "
            "here, or the one that --port or --socket names."
        ),
    )
    where = cache.add_mutually_exclusive_group()
    where.add_argument("--socket", metavar="PATH", help="socket of the server to ask")
    where.add_argument("--port", type=int, metavar="PORT", help="port of the server to ask")
    where.add_argument(
        "--tier",
        dest="open_tiers",
        metavar="NAME=SPEC",
        action="append",
        help="open this tier while no server does: disk=DIRECTORY:SIZE or pool=redis://HOST:PORT; may be repeated",
    )
    where.add_argument("--config", metavar="FILE.toml", help="or all disks and pools of this file")
    cache.add_argument(
        "--cache-secret-file", metavar="FILE", help="of that server, to name tenants (one in the cache directory)"
    )
    cache.set_defaults(run=run)
    verbs = cache.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_looks(verbs)
    for name, text, more in _VERBS:
        _add_change(verbs, name, text, more)


def _add_looks(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    _verb(verbs, "tiers", "show what each tier did and holds", "One row for each tier, fastest first.")
    listing = _verb(verbs, "list", "list blocks", "Lists blocks, tier by tier.")
    listing.add_argument("--tier", metavar="TIER", help="only of this tier")
    listing.add_argument("--limit", type=int, metavar="N", help="at most so many (100)")
    _add_tenant(listing)
    show = _verb(verbs, "show", "show where the copies of a block are", "Shows all copies of one block.")
    show.add_argument("hash", metavar="HASH", help="of the block, or its first 8 digits or more")
    _add_tenant(show)
    explain = _verb(
        verbs, "explain", "show how a prompt would begin", "Says what would be loaded and why, and loads nothing."
    )
    _add_prompt(explain, needed=True)
    explain.add_argument("--tenant", metavar="NAME", help="the cache_salt it comes with")


def _add_change(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, more: str) -> None:
    parser = _verb(verbs, name, text, f"{text[0].upper()}{text[1:]}. {more}")
    parser.add_argument("hashes", nargs="*", default=[], metavar="HASH", help="a block, or its first 8 digits or more")
    _add_tenant(parser)
    _add_prompt(parser, needed=False)
    parser.add_argument("--all", action="store_true", help="all blocks of all tenants")
    if name in _CARRIERS:
        parser.add_argument("--from", dest="source", metavar="TIER", required=True, help="tier to take them from")
    else:
        parser.add_argument("--tier", metavar="TIER", help="only in this tier")
    if name in (*_CARRIERS, "prefetch"):
        parser.add_argument("--to", dest="target", metavar="TIER", required=True, help="tier to bring them to")
    if name == "purge":
        parser.add_argument("--yes", action="store_true", help="do not ask before --all")
    parser.add_argument("--timeout", type=float, metavar="S", help="how long each tier may take (600)")


def _add_tenant(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--tenant", metavar="NAME", help="only of requests with this cache_salt")
    whose.add_argument("--default-tenant", action="store_true", help="only of requests without a cache_salt")


def _add_prompt(parser: argparse.ArgumentParser, *, needed: bool) -> None:
    parser.add_argument(
        "--prompt", metavar="FILE", required=needed, help="the blocks of the text in this file; - is standard input"
    )
    parser.add_argument("--chat", action="store_true", help="the file holds messages as JSON, as a chat request does")


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, description: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=description)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit status.

    Raises:
        KvistError: it could not be done; the message says why and what to do.
    """
    # Late: the parser is built for every command and for --help, which must answer at once.
    from kvist.cli.cache_run import run_cache  # noqa: PLC0415

    return run_cache(args)
