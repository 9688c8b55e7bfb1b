"""What `kvist cache` does: finds who can do it, says what is meant, and shows what came of it."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from kvist.base.errors import ConfigError, KvistError
from kvist.cli.cache_client import Ask, asker, find_server
from kvist.cli.cache_tables import shown

_CONTENT_WITHOUT = ("purge", "unpin")
"""What these are for is as true of a block that is not there."""
_LOOKS = ("tiers", "list", "show", "explain")
_PROMPT_BYTES_MAX = 7 * 2**20
_TIMEOUT_S_MAX = 86_400
_YES = "yes"


def run_cache(args: argparse.Namespace, console: Console | None = None) -> int:
    """Runs one verb.

    Args:
        args: what the parser of `kvist.cli.cache` returned.
        console: where to show it; None: standard output.

    Returns:
        0 when all of it was done; 1 when a tier failed, or something was left undone, was damaged or not there.

    Raises:
        KvistError: nothing could be done; the message says why and what to do.
    """
    body = body_of(args)
    _confirm(args, body)
    with _opened(args) as ask:
        answer = ask(args.verb, body)
    console = console or Console()
    if args.json:
        console.print(json.dumps(answer, indent=2), markup=False, highlight=False, soft_wrap=True, emoji=False)
    else:
        for each in shown(args.verb, answer):
            console.print(each)
    return int(_is_failed(args.verb, answer))


def body_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags say, in the words of `kvist.server.administration_bodies`; what was not given is left out.

    Raises:
        ConfigError: the prompt's file cannot be read, or a flag makes no sense.
    """
    names = ("hash", "hashes", "tenant", "default_tenant", "all", "tier", "source", "target", "limit")
    given = {name: getattr(args, name, None) for name in names}
    body = {name: value for name, value in given.items() if value is not None and value is not False and value != []}
    timeout_s = getattr(args, "timeout", None)
    if timeout_s is not None:
        if not 0 < timeout_s <= _TIMEOUT_S_MAX:
            raise ConfigError(f"--timeout {timeout_s:g}: give seconds, more than 0 and at most {_TIMEOUT_S_MAX}")
        body["timeout_s"] = timeout_s
    if getattr(args, "prompt", None) is not None:
        body |= read_prompt(args.prompt, is_chat=args.chat)
    elif getattr(args, "chat", False):
        raise ConfigError("--chat says what is in the file that --prompt names; name one")
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConfigError("the arguments hold bytes that are no UTF-8 text") from error
    return body


def read_prompt(path: str, *, is_chat: bool) -> dict[str, Any]:
    """The prompt in a file: text, or the messages of a conversation.

    Raises:
        ConfigError: it cannot be read, is too long, or is no such thing.
    """
    try:
        if path == "-":
            content = sys.stdin.buffer.read(_PROMPT_BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(_PROMPT_BYTES_MAX + 1)
        if len(content) > _PROMPT_BYTES_MAX:
            raise ConfigError(f"--prompt {path}: it is longer than {_PROMPT_BYTES_MAX} bytes")
        text = content.decode()
        if not is_chat:
            return {"prompt": text}
        messages = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--prompt {path}: {error}") from error
    if isinstance(messages, dict):  # the whole body of a request
        messages = messages.get("messages")
    if not isinstance(messages, list):
        raise ConfigError(f'--prompt {path}: with --chat it holds a list of messages, or {{"messages": [...]}}')
    return {"messages": messages}


@contextlib.contextmanager
def _opened(args: argparse.Namespace) -> Iterator[Ask]:
    """Who does it: a running server, or this process."""
    if args.open_tiers is None and args.config is None:
        yield asker(find_server(args.socket, args.port, os.environ))
        return
    # Late: a server that runs needs none of it here.
    from kvist.app.administration_offline import offline_tiers, offline_verbs, secret_of  # noqa: PLC0415
    from kvist.server.errors import ApiError  # noqa: PLC0415

    specs = offline_tiers(args.open_tiers or [], args.config)
    with offline_verbs(specs, secret_of(args.cache_secret_file, os.environ)) as verbs:

        def ask(verb: str, body: dict[str, Any]) -> dict[str, Any]:
            try:
                return verbs.do(verb, body)
            except ApiError as error:
                raise ConfigError(str(error)) from error

        yield ask


def _confirm(args: argparse.Namespace, body: dict[str, Any]) -> None:
    """Asks before everything is forgotten.

    Raises:
        ConfigError: nobody is there to ask, or the answer is no.
    """
    if args.verb != "purge" or not body.get("all") or args.yes:
        return
    what = f"everything in {args.tier}" if args.tier else "everything in all tiers"
    if not sys.stdin.isatty():
        raise ConfigError(f"this would forget {what}, of all tenants, and there is no terminal to ask; add --yes")
    print(f"This forgets {what}, of all tenants. Type {_YES} to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != _YES:
        raise ConfigError("nothing was purged")


def _is_failed(verb: str, answer: dict[str, Any]) -> bool:
    if verb in _LOOKS:
        return bool(answer.get("errors"))
    rows = answer.get("tiers", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise KvistError("the answer makes no sense; is the server of another version?")
    wrong = ("error", "left", "damaged", *(() if verb in _CONTENT_WITHOUT else ("absent",)))
    return bool(answer.get("unknown")) or any(row.get(name) for row in rows for name in wrong)
