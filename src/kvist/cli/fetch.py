"""`kvist fetch`: gets a named model, once; the only command that downloads."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from kvist.app.catalogue import CATALOGUE, NamedModel, Terms, named
from kvist.base.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from kvist.app.model_store import ModelStore

_YES = "yes"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command and its options; loads nothing heavy."""
    lines = [f"  {model.name:14} {model.summary}; {model.licence}" for model in CATALOGUE.values()]
    parser = subparsers.add_parser(
        "fetch",
        help="download a named model and keep it converted in the cache directory",
        description="Downloads a named model, converts it once, and keeps it in the cache directory.",
        epilog="\n".join(["models:", *lines, "", "The cache directory is $KVIST_CACHE, else ~/.cache/kvist."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=tuple(CATALOGUE), help="which model")
    parser.add_argument("--accept-terms", action="store_true", help="accept the model's terms of use unasked")
    parser.add_argument("--force", action="store_true", help="download and convert even if it is there and whole")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Args:
        args: what the parser of `add_parser` returned.

    Returns:
        The exit status.

    Raises:
        KvistError: the model could not be had; the message says what to do.
    """
    # Late: the parser is built for every command and for --help, which must answer at once.
    from kvist.app.cache_dir import cache_root  # noqa: PLC0415
    from kvist.app.model_store import ModelStore  # noqa: PLC0415

    get(named(args.name), ModelStore(cache_root(os.environ)), accept_terms=args.accept_terms, force=args.force)
    return 0


def get(model: NamedModel, store: "ModelStore", *, accept_terms: bool, force: bool) -> None:
    """Shows the terms, if there are any to accept, fetches the model, and says where it is.

    Args:
        model: which one.
        store: where to.
        accept_terms: accept its terms unasked.
        force: fetch it even if it is there.

    Raises:
        KvistError: the model could not be had; the message says what to do.
    """
    # Late, for the same reason as in `run`.
    from rich.console import Console  # noqa: PLC0415

    from kvist.app.fetch import fetch_model, is_fetched  # noqa: PLC0415
    from kvist.cli.progress import drawn  # noqa: PLC0415

    console = Console()
    if model.terms is not None and (force or not is_fetched(model, store)):
        accept_terms = _accepted(model, model.terms, console, unasked=accept_terms)
    with drawn() as report:
        directory = fetch_model(model, store, accept_terms=accept_terms, progress=report, force=force)
    console.print(f"{model.name} is ready: {directory}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Serve it with: kvist serve --model {model.name}", markup=False, highlight=False)


def _accepted(model: NamedModel, terms: Terms, console: "Console", *, unasked: bool) -> bool:
    """Shows the terms, and asks unless they were accepted beforehand.

    Raises:
        ConfigError: nobody is there to ask, or the answer is no.
    """
    # Late, for the same reason as in `run`.
    from kvist.app.terms import read_terms  # noqa: PLC0415

    remedy = f"run: kvist fetch {model.name} --accept-terms"
    if not unasked and not sys.stdin.isatty():
        raise ConfigError(
            f"{model.name} comes under the {terms.title} ({terms.url}), and there is no terminal to ask whether you "
            f"accept them; read them and {remedy}"
        )
    text = f"{read_terms(terms)}\n\nThese are the {terms.title}, published at {terms.url}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    if unasked:
        console.print("Accepted with --accept-terms.")
        return True
    console.print(f"{model.name} can be used under these terms only. Type {_YES} to accept them:", end=" ")
    answer = sys.stdin.readline()
    if answer.strip() != _YES:
        raise ConfigError(f"the {terms.title} were not accepted, so {model.name} was not fetched; to accept, {remedy}")
    return True
