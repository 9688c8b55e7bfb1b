"""The `kvist` command: which subcommands there are, and how a failure looks.

Building the parser loads nothing heavy, so that `kvist --help` answers at once; each subcommand imports what it
needs when it runs.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import kvist
from kvist.base.errors import CapacityError, ConfigError, KvistError
from kvist.cli import bench, cache, doctor, fetch, plan, serve


class _Parser(argparse.ArgumentParser):
    """Takes flags only as they are written, in every command: one added later must not change what another means."""

    def __init__(self, **rest: Any) -> None:  # noqa: ANN401  whatever argparse takes
        super().__init__(**rest, allow_abbrev=False)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands and their flags."""
    parser = _Parser(prog="kvist", description="Keeps the KV cache of LLM inference alive and useful.")
    parser.add_argument("--version", action="version", version=f"kvist {kvist.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="{plan,serve,cache,doctor,fetch,bench}")
    for command in (plan, serve, cache, doctor, fetch, bench):
        command.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: as typed, without the program's name; None takes the process's own.

    Returns:
        0 when done, 1 when it failed, 2 when what was asked cannot work.
    """
    args = build_parser().parse_args(arguments)
    try:
        status: int = args.run(args)
    except (ConfigError, CapacityError) as error:
        print(f"kvist {args.command}: {error}", file=sys.stderr)
        return 2
    except KvistError as error:
        print(f"kvist {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"kvist {args.command}: interrupted", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
