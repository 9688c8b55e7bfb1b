"""`kvist serve`, without its looks: finds the model, starts the engine, serves it, stops it."""

import gc
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

from kvist.app.administration import Reading, administered, administration_app
from kvist.app.budget import Budget, memory_card
from kvist.app.clock import SystemCalendar, SystemClock
from kvist.app.config import ServeConfig
from kvist.app.engine import read_geometry, started_engine
from kvist.app.explain import explained_by
from kvist.app.fabric import share_interpreter
from kvist.app.kv_memory import ReservedMemory
from kvist.app.locate import locate
from kvist.app.private_socket import operator_listener
from kvist.app.progress import Progress, Report
from kvist.app.secret import load_secret, secret_path
from kvist.engine.backends.device import open_device
from kvist.engine.backends.tokenizer import load_tokenizer
from kvist.server.app import create_app
from kvist.server.listen import listen, serve
from kvist.server.settings import ModelCard, ServerSettings

OnReady = Callable[[str, Budget], None]


def run_server(config: ServeConfig, report: Report, on_ready: OnReady, memory: ReservedMemory | None = None) -> None:
    """Serves until SIGTERM or SIGINT, drains, and returns.

    Args:
        config: checked settings.
        report: takes how far the start has come.
        on_ready: called once with the server's URL and the memory budget when requests are taken, on the event
            loop's thread; must return at once.
        memory: for KV, if some is being touched already.

    Raises:
        ConfigError: the model, the settings or the address cannot be used.
        CapacityError: the memory is not there.
    """
    # First what is quick to refuse: an address in use, a device that is not there.
    open_device(config.device)
    with ExitStack() as stack:
        listener = stack.enter_context(closing(listen(config.host, config.port)))
        operators = None
        if config.tiers:
            _, operators = stack.enter_context(operator_listener(os.environ, listener.getsockname()[1]))
        _serve(config, _Outside(clients=listener, operators=operators, report=report, on_ready=on_ready), memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outside:
    """Where a server is asked, by clients, and by operators if it has tiers; and who is told how far it has come."""

    clients: socket.socket
    operators: socket.socket | None
    report: Report
    on_ready: OnReady


def _serve(config: ServeConfig, outside: _Outside, memory: ReservedMemory | None) -> None:
    report = outside.report
    report(Progress(stage="Checking model files"))
    files = locate(config.model, progress=report)
    geometry = read_geometry(files.directory)  # before others read the directory, who know more kinds of models
    tokenizer = load_tokenizer(files.directory)
    with ExitStack() as stack:
        started = stack.enter_context(started_engine(files, geometry, config, report, memory))
        card = ModelCard(
            id=config.served_model_name or files.served_name,
            root=str(files.directory),
            created_s=int(SystemCalendar().now_unix_s()),
        )
        settings = ServerSettings(model=card, memory=memory_card(started.budget, config))
        app = create_app(started.engine, tokenizer, settings, SystemClock())
        if started.fabric is not None and outside.operators is not None:
            reading = Reading(
                load_tokenizer=partial(load_tokenizer, files.directory),
                tokens_max=started.engine.limits.prompt_tokens_max,
                explain=explained_by(started.engine, started.fabric),
            )
            secret = load_secret(secret_path(config.cache_secret_file, os.environ))
            operated = administration_app(started.fabric, secret, reading, settings)
            stack.enter_context(administered(operated, outside.operators))

        def listening(host: str, port: int) -> None:
            shown = f"[{host}]" if ":" in host else host
            outside.on_ready(f"http://{shown}:{port}", started.budget)

        if config.tiers:
            share_interpreter()  # without movers, each switch that is forced on the engine only costs time
        # What is loaded by now stays to the end; to look through it again and again would stop every thread each time.
        gc.collect()
        gc.freeze()
        serve(app, outside.clients, config.drain_seconds, listening)
