"""Asks a running server over its private socket: which one, and what went wrong."""

import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from kvist.app.private_socket import check_socket, port_of, socket_path, sockets_there
from kvist.base.errors import ConfigError, KvistError, WireError

Ask = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Has a verb done, by its name and its body, and returns the answer."""

CHANGE_S = 600.0
"""What the server takes for a body that gives no time."""
LOOK_S = 300.0
"""Longest wait for an answer, beside the time that the body gives each tier."""
_TIERS = 8
_CONNECT_S = 5.0
_REFUSED = range(400, 500)


def find_server(path: str | None, port: int | None, environment: Mapping[str, str]) -> Path:
    """The socket of the server to ask.

    Args:
        path: given by name, or None.
        port: given by port, or None; without either, the only server there is.
        environment: says where this user's sockets are.

    Raises:
        ConfigError: there is none, there are several, or it is not this user's.
    """
    if path is not None:
        if not path or "\0" in path:
            raise ConfigError(f"--socket {path!r} is no path")
        found = Path(path).absolute()
    elif port is not None:
        if not 0 < port < 2**16:
            raise ConfigError(f"--port {port} is not one of 1 to 65535")
        sockets = sockets_there(environment, port)
        found = _only(sockets) if len(sockets) > 1 else sockets[0] if sockets else socket_path(environment, port)
    else:
        found = _only(sockets_there(environment))
    check_socket(found)
    return found


def asker(socket_at: Path) -> Ask:
    """Asks the server at a socket; each call is a request of its own.

    The calls raise a `ConfigError` for what the server refuses, a `WireError` when it dies or does not answer, and a
    plain `KvistError` for a failure of its own.
    """

    def ask(verb: str, body: dict[str, Any]) -> dict[str, Any]:
        # First by ourselves: the client library leaves a socket open that could not be connected.
        silent = _why_silent(socket_at)
        if silent is not None:
            raise WireError(f"nobody answers at {socket_at} ({silent}); is its server still running?") from silent
        timeout = httpx.Timeout(LOOK_S + _TIERS * float(body.get("timeout_s", CHANGE_S)), connect=_CONNECT_S)
        try:
            with httpx.Client(transport=httpx.HTTPTransport(uds=os.fspath(socket_at)), timeout=timeout) as client:
                response = client.post(f"http://kvist/v1/cache/{verb}", json=body)
        except httpx.TimeoutException as error:
            raise WireError(f"the server at {socket_at} did not answer in time; what it was asked may go on") from error
        except httpx.HTTPError as error:
            raise WireError(
                f"the server at {socket_at} broke off ({error}); what it was asked may be half done"
            ) from error
        return _answer(response, socket_at)

    return ask


def _why_silent(socket_at: Path) -> OSError | None:
    """Why nobody answers at a socket; None: somebody does."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(os.fspath(socket_at))
        except OSError as error:
            return error
    return None


def _answer(response: httpx.Response, socket_at: Path) -> dict[str, Any]:
    try:
        answer = json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise WireError(f"what answers at {socket_at} is no server of Kvist") from error
    if response.status_code == httpx.codes.OK and isinstance(answer, dict):
        return answer
    problem = answer.get("error") if isinstance(answer, dict) else None
    message = problem.get("message") if isinstance(problem, dict) else None
    if not isinstance(message, str):
        raise WireError(f"what answers at {socket_at} is no server of Kvist: status {response.status_code}")
    raise (ConfigError if response.status_code in _REFUSED else KvistError)(message)


def _only(found: list[Path]) -> Path:
    """The only one at which somebody answers: what a server that was killed has left is no server."""
    found = [path for path in found if _why_silent(path) is None]
    if not found:
        raise ConfigError(
            "no server with tiers runs here; start one with kvist serve --tier, name its --socket, or open its tiers "
            "yourself with --tier"
        )
    if len(found) > 1:
        if len({port_of(path) for path in found}) < len(found):  # on several addresses
            raise ConfigError(f"there are several servers; name one by --socket {', '.join(map(str, found))}")
        raise ConfigError(f"there are several servers; name one by --port {', '.join(path.stem for path in found)}")
    return found[0]
