"""What `kvist cache` talks to: a small server of its own beside the engine's, on a socket that only its user can reach.

It runs on a thread of its own, so that neither a long command nor a client that never reads delays anybody else.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import uvicorn
from starlette.types import ASGIApp

from kvist.blocks.keys import tenant_key
from kvist.fabric.control import Fabric
from kvist.server.administration import create_administration
from kvist.server.administration_ports import Explain, Model
from kvist.server.administration_stock import FabricStock
from kvist.server.administration_verbs import Verbs
from kvist.server.ports import Tokenizer
from kvist.server.settings import ServerSettings

STOP_S = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a server reads prompts.

    Attributes:
        load_tokenizer: loads a tokenizer of the model that nobody else has, for it is used by one thread at a time;
            called once, when the first prompt is read, since it may take seconds.
        tokens_max: of one prompt.
        explain: asks the engine; None: it cannot be asked.
    """

    load_tokenizer: Callable[[], Tokenizer]
    tokens_max: int
    explain: Explain | None = None


def administration_app(fabric: Fabric, secret: bytes, reading: Reading, settings: ServerSettings) -> ASGIApp:
    """The app for one running server.

    Args:
        fabric: the tiers.
        secret: what tenants' keys are made with.
        reading: how the server reads prompts.
        settings: bounds on what is sent.
    """
    with fabric.inside() as inside:
        facts = inside.desk.settings
    model = Model(
        open_tokenizer=cache(reading.load_tokenizer),
        namespace=facts.namespace,
        block_tokens=facts.block_tokens,
        tokens_max=reading.tokens_max,
        explain=reading.explain,
    )
    return create_administration(Verbs(FabricStock(fabric), partial(tenant_key, secret), model), settings)


@contextlib.contextmanager
def administered(app: ASGIApp, listener: socket.socket, stop_s: int = STOP_S) -> Iterator[None]:
    """Serves the app for the length of a `with`.

    Args:
        app: as `administration_app` makes it.
        listener: as `kvist.app.private_socket.operator_listener` gives it, before anything that takes long: where it
            cannot be had, the server should not begin.
        stop_s: how long commands that run at the end may take; what they began, the tiers go on with.
    """
    server = uvicorn.Server(_config(app, stop_s))
    thread = threading.Thread(target=server.run, args=([listener],), name="kvist-administration", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(2 * stop_s)
        if thread.is_alive():
            _log.warning("a command of kvist cache still runs, and is left behind")


def _config(app: ASGIApp, stop_s: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=stop_s,
    )
