"""`kvist serve`: the flags. What the command does is in `serve_run`, imported when it runs."""

import argparse
import contextlib
import gc
from collections.abc import Iterator

_FLAGS: tuple[tuple[str, str, str], ...] = (
    ("--model", "NAME|DIR|FILE.gguf", "a fetched model's name, a Hugging Face directory, or a GGUF file (smollm2)"),
    ("--host", "HOST", "name or address to listen on (127.0.0.1)"),
    ("--port", "PORT", "port to listen on; 0 lets the system choose (8000)"),
    ("--served-model-name", "NAME", "what requests call the model (the model's own name)"),
    ("--dtype", "DTYPE", "bfloat16 or float32, of weights, activations and KV (bfloat16)"),
    ("--device", "DEVICE", "cpu or cuda (cpu)"),
    ("--threads", "N", "CPU threads for one operation (what torch chooses)"),
    ("--kv-memory", "SIZE", "size of the KV pool, such as 2GiB (2GiB on a CPU)"),
    (
        "--kv-memory-fraction",
        "F",
        "or this part of what weights and workspace leave free (0.8 on a GPU)",
    ),
    ("--block-tokens", "N", "tokens per KV block (16)"),
    ("--step-tokens", "N", "most tokens computed in one step: the size of a prefill chunk (1024)"),
    ("--sequences-max", "N", "sequences running at once (64)"),
    ("--waiting-max", "N", "sequences waiting at once; more are answered with 429 (1024)"),
    ("--model-tokens-max", "N", "longest prompt plus output (the model's positions)"),
    ("--prompt-tokens-max", "N", "longest prompt (one less than --model-tokens-max)"),
    ("--output-tokens-max", "N", "longest output (one less than --model-tokens-max)"),
    ("--overcommit", "F", "expect outputs to take 1/F of their bounds; above 1, requests may be preempted (1)"),
    ("--window-checkpoint-tokens", "N", "sliding-window KV is kept before every so many tokens (4096)"),
    ("--drain-seconds", "S", "how long running requests may go on after SIGTERM (30)"),
    ("--config", "FILE.toml", "settings in a file, by the names of these flags; flags count more"),
    ("--staging-memory", "SIZE", "memory that KV passes through on its way to and from tiers (64MiB)"),
    ("--cache-ttl-seconds", "S", "how long KV stays in tiers at most (until it is evicted)"),
    ("--load-when", "WHEN", "cheaper or always: whether loading must beat computing, as far as is known (cheaper)"),
    (
        "--cache-secret-file",
        "FILE",
        "what tenants' keys are made with; servers that share a tier need the same (one in the cache directory)",
    ),
)
_TIER_HELP = (
    "keep KV beyond the engine's memory: dram=SIZE, disk=DIRECTORY:SIZE or pool=redis://HOST:PORT; may be repeated"
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command and its options; loads nothing heavy."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model with an OpenAI-compatible API",
        description="Serves one model with an OpenAI-compatible API. Downloads nothing: see kvist fetch.",
    )
    for flag, metavar, text in _FLAGS:
        parser.add_argument(flag, metavar=metavar, help=text.replace("%", "%%"))
    parser.add_argument("--tier", metavar="NAME=SPEC", action="append", help=_TIER_HELP)
    parser.add_argument("--offload-prompt-only", action="store_true", help="keep the KV of outputs out of the tiers")
    parser.add_argument("--audit", action="store_true", help="check the ledger of blocks after every step")
    parser.add_argument("--demo", action="store_true", help="when ready, show what reuse saves")
    parser.set_defaults(run=run)


def settings(args: argparse.Namespace) -> dict[str, object]:
    """What the flags say, by the names of `kvist.app.config.read_config`; None where a flag was not given."""
    names = [flag.removeprefix("--").replace("-", "_") for flag, _, _ in _FLAGS]
    switches = {name: getattr(args, name) or None for name in ("audit", "offload_prompt_only")}
    return {name: getattr(args, name) for name in (*names, "tier")} | switches


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit status.

    Raises:
        KvistError: it cannot be served; the message says why and what to do.
    """
    # Late: the parser is built for every command and for --help, which must answer at once.
    from kvist.app.config import read_config  # noqa: PLC0415
    from kvist.app.conversion import require_engine  # noqa: PLC0415
    from kvist.app.kv_memory import reserved_ahead  # noqa: PLC0415

    config = read_config(settings(args))
    require_engine()
    memory = reserved_ahead(config)
    with _uncollected():
        # Later still: it cannot even be imported without the engine's packages.
        from kvist.cli.serve_run import serve  # noqa: PLC0415

    return serve(config, memory, demo=args.demo)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Imports without looking for garbage, and never looks through what was imported.

    Nearly all of it stays to the end, and there is so much that searching it takes a quarter of the imports' time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
