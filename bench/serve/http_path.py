"""What HTTP costs beside the engine: processor time of the server's loop for each token, and steps with and without it.

    python bench/serve/http_path.py --rounds 9 --json bench/results/http-path.json

`kvist serve` and an engine without a server, in this process, do the same work in turn: so many answers at once, each
of so many tokens. The client reads bytes and looks at none, because it has to share the machine. The loop's time is
what the system counted for the server's main thread; a step is the time of the whole round through its tokens, the
prompts' computation (a few tokens each) included in both.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from own_server import OwnServer, own_server
from rich.console import Console
from rich.table import Table

from kvist.app.clock import SystemClock
from kvist.app.config import read_config
from kvist.app.engine import read_geometry, started_engine
from kvist.app.locate import locate
from kvist.app.progress import silent
from kvist.base.errors import ConfigError, KvistError
from kvist.base.ids import TENANT_DEFAULT, RequestId, TokenId
from kvist.base.units import Tokens
from kvist.engine.messages import Admitted, Event, Failed, Refused, TokenDrawn
from kvist.engine.request import Request, Sampling
from kvist.engine.thread import EngineThread
from kvist.lab.draw import Span, integers
from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.lab.spread import Spread, pairwise_ratios, spread

PROMPT_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One round at one width; round 0 warms up and is in no summary.

    Attributes:
        streams: answers at once.
        loop_us: processor time of the server's main thread for each token, in microseconds.
        http_ms: a step of the server; alone_ms: of the engine by itself.
    """

    round: int
    streams: int
    loop_us: float
    http_ms: float
    alone_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All rounds of one width; `ratio` is a step of the server / one of the engine by itself."""

    streams: int
    loop_us: Spread
    http_ms: Spread
    alone_ms: Spread
    ratio: Spread


class Alone:
    """An engine without a server."""

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._asked = 0

    def run(self, prompts: Sequence[Sequence[int]], output: int) -> None:
        """Continues all prompts at once, each by so many tokens.

        Raises:
            ConfigError: the engine did not.
        """
        ended = threading.Semaphore(0)
        failed: list[str] = []

        def take(event: Event) -> None:
            if isinstance(event, Refused | Failed):
                failed.append(event.message)
            if not isinstance(event, Admitted | TokenDrawn):
                ended.release()

        for prompt in prompts:
            self._asked += 1
            self._engine.submit(_request(str(self._asked), prompt, output), take)
        for _ in prompts:
            ended.acquire()
        if failed:
            raise ConfigError(f"the engine did not answer: {failed[0]}")


def _request(name: str, prompt: Sequence[int], output: int) -> Request:
    return Request(
        id=RequestId(name),
        tenant=TENANT_DEFAULT,
        prompt=tuple(map(TokenId, prompt)),
        output_tokens_max=Tokens(output),
        sampling=Sampling(temperature=0),
        stop_tokens=frozenset(),
    )


@contextlib.contextmanager
def alone(flags: dict[str, object]) -> Iterator[Alone]:
    """An engine in this process, for the time of a `with`."""
    config = read_config(flags)
    files = locate(config.model)
    with started_engine(files, read_geometry(files.directory), config, silent) as started:
        yield Alone(started.engine)


async def stream(port: int, body: bytes) -> None:
    """Asks for one answer and reads it to its end.

    Raises:
        ConfigError: it is none.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
    first, last = await reader.read(65536), b""
    while part := await reader.read(65536):
        last = last[-64:] + part
    writer.close()
    if not first.startswith(b"HTTP/1.1 200") or b"[DONE]" not in last:
        raise ConfigError(f"the server answered {first[:200]!r} ... {last[-200:]!r}")


async def ask_all(port: int, prompts: Sequence[Sequence[int]], output: int, model: str) -> None:
    """Asks for all answers at once and reads them to their ends."""
    common = {"model": model, "max_tokens": output, "temperature": 0, "stream": True, "ignore_eos": True}
    bodies = [json.dumps(common | {"prompt": list(prompt)}).encode() for prompt in prompts]
    await asyncio.gather(*(stream(port, body) for body in bodies))


def measure(server: OwnServer, engine: Alone, args: argparse.Namespace, model: str) -> list[Sample]:
    """All rounds, server and engine in changing order."""
    samples, clock, port = [], SystemClock(), int(server.url.rpartition(":")[2])
    for turn in range(args.rounds + 1):
        for streams in args.streams:
            prompts = [
                integers(args.seed, f"{turn} {streams} {index}", PROMPT_TOKENS, Span(low=100, high=args.ids_max))
                for index in range(streams)
            ]
            spent_s: dict[bool, float] = {}
            loop_before_s = server.main_thread_s()
            for over_http in (turn % 2 == 0, turn % 2 == 1):
                before_s = clock.now_s()
                if over_http:
                    asyncio.run(ask_all(port, prompts, args.output, model))
                else:
                    engine.run(prompts, args.output)
                spent_s[over_http] = clock.now_s() - before_s
            sample = Sample(
                round=turn,
                streams=streams,
                loop_us=1e6 * (server.main_thread_s() - loop_before_s) / (streams * args.output),
                http_ms=1e3 * spent_s[True] / args.output,
                alone_ms=1e3 * spent_s[False] / args.output,
            )
            samples.append(sample)
    return samples


def summarise(samples: Sequence[Sample]) -> list[Summary]:
    """One summary of each width."""
    found = []
    for streams in sorted({sample.streams for sample in samples}):
        of = [sample for sample in samples if sample.streams == streams and sample.round]
        http, by_itself = [each.http_ms for each in of], [each.alone_ms for each in of]
        summary = Summary(
            streams=streams,
            loop_us=spread([each.loop_us for each in of]),
            http_ms=spread(http),
            alone_ms=spread(by_itself),
            ratio=spread(pairwise_ratios(http, by_itself)),
        )
        found.append(summary)
    return found


def table(summaries: Sequence[Summary]) -> Table:
    shown = Table(title="Medians (quartiles)")
    for column in ("streams", "loop, us per token", "step over HTTP, ms", "engine alone, ms", "HTTP / alone"):
        shown.add_column(column, justify="right")
    for each in summaries:
        cells = (each.loop_us, each.http_ms, each.alone_ms, each.ratio)
        shown.add_row(str(each.streams), *(f"{one.median:.3g} ({one.q1:.3g}-{one.q3:.3g})" for one in cells))
    return shown


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a fetched model's name, or a directory (%(default)s)")
    parser.add_argument("--streams", type=_counts, default=(1, 8), help="answers at once, with commas (1,8)")
    parser.add_argument("--output", type=int, default=128, help="tokens of each answer (%(default)s)")
    parser.add_argument("--ids-max", type=int, default=30_000, help="token ids of prompts are below (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds beside the first (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    return parser.parse_args(argv)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main(argv: Sequence[str]) -> int:
    args = arguments(argv)
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/serve/http_path.py", argv, seed=args.seed)
    fields: dict[str, object] = {"model": args.model, "threads": str(args.threads), "kv_memory": "256MiB"}
    flags = [part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    with own_server(*flags, "--served-model-name", "m") as server, alone(fields) as engine:
        samples = measure(server, engine, args, "m")
    summaries = summarise(samples)
    Console().print(table(summaries))
    if args.json is not None:
        content = script_document("http_path", provenance, vars(args), {"samples": samples, "summary": summaries})
        write_json(args.json, content)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KvistError as error:
        sys.exit(f"http_path: {error}")
