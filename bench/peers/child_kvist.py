"""Kvist's engine as a child of the comparison: what `kvist serve` starts, without the server."""

import argparse
import itertools
import queue
import sys
import time

from child import Answer, Prompts, own_output, serve

import kvist
from kvist.app.config import read_config
from kvist.app.engine import read_geometry, started_engine
from kvist.app.locate import locate
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.engine.messages import Admitted, Event, Finished, TokenDrawn
from kvist.engine.request import Request, Sampling
from kvist.engine.thread import EngineThread

Timed = tuple[float, Event]


class KvistChild:
    """Asks one engine and notes when each event came."""

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._ids = itertools.count()

    def ask(self, prompts: Prompts, output: int) -> Answer:
        """All prompts at once; see `child`.

        Raises:
            RuntimeError: one was refused or failed.
        """
        events: queue.SimpleQueue[Timed] = queue.SimpleQueue()
        begun_s = time.perf_counter()
        ids = [RequestId(str(next(self._ids))) for _ in prompts]
        for name, prompt in zip(ids, prompts, strict=True):
            request = Request(
                id=name,
                tenant=TenantId("peers"),
                prompt=tuple(map(TokenId, prompt)),
                output_tokens_max=Tokens(output),
                sampling=Sampling(temperature=0),
                stop_tokens=frozenset(),
            )
            self._engine.submit(request, lambda event: events.put((time.perf_counter() - begun_s, event)))
        times: dict[RequestId, list[float]] = {name: [] for name in ids}
        cached = dict.fromkeys(ids, 0)
        running = len(ids)
        while running:
            at_s, event = events.get()
            match event:
                case TokenDrawn():
                    times[event.request_id].append(at_s)
                case Admitted():
                    cached[event.request_id] = int(event.tokens_cached)
                case Finished():
                    running -= 1
                case _:
                    raise RuntimeError(str(event))
        return {"times_s": list(times.values()), "cached": list(cached.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-bytes", type=int, default=2**31)
    args = parser.parse_args()
    output = own_output()
    settings = {"model": args.model, "dtype": args.dtype, "threads": args.threads, "kv_memory": args.kv_bytes}
    config = read_config({key: str(value) for key, value in settings.items()})
    files = locate(config.model)
    with started_engine(files, read_geometry(files.directory), config, lambda _: None) as started:
        serve(output, {"kvist": kvist.__version__}, KvistChild(started.engine).ask)


if __name__ == "__main__":
    sys.exit(main())
