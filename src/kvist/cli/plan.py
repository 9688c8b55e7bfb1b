"""`kvist plan`: the flags. What the command does is in `plan_run`, imported when it runs."""

import argparse

_EPILOG = """\
examples:
  kvist plan --model llama-3.1-70b --gpu h200 --tp 2 --context 131072 --concurrency 4 --kv-dtype fp8
  kvist plan --model ~/models/mine --gpu-memory 80GiB --concurrency 16
  kvist plan --model smollm2 --engine kvist --gpu-memory 8GiB --json
  kvist plan --model qwen3-8b --gpu l40s --check http://127.0.0.1:8000
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command and its options; loads nothing heavy."""
    parser = subparsers.add_parser(
        "plan",
        help="know before you deploy how much KV memory a model needs, and what it buys",
        description=(
            "Says what the KV of a model takes on given accelerators, what is left for it, how many requests fit, "
            "what each change would buy, from which prompt length on loading beats computing, and what to type. Needs "
            "no GPU and downloads nothing. Status 1 when what is asked for does not fit, or, with --check, when the "
            "server differs in a way that nothing explains."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(parser)
    _add_how(parser)
    parser.add_argument(
        "--check",
        metavar="URL",
        help="compare with what the vLLM or Kvist that runs there reports, and say why it differs",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON, with units in the names")
    parser.set_defaults(run=run)


def _add_what(parser: argparse.ArgumentParser) -> None:
    """The model, the accelerators and the requests."""
    parser.add_argument(
        "--model",
        metavar="DIR|config.json|FILE.gguf|NAME",
        required=True,
        help="a model's directory or configuration, a GGUF file, or a name such as llama-3.1-8b",
    )
    parser.add_argument("--gpu", metavar="NAME", help="accelerator of the catalogue, such as h200")
    parser.add_argument("--gpu-memory", metavar="SIZE", help="memory of another one, or of a part of that one")
    parser.add_argument("--gpu-tflops", metavar="F", help="its dense bf16 TFLOPS, to compare computing with loading")
    parser.add_argument("--gpu-host-link", metavar="SIZE", help="and bytes per second to its host, such as 64GB")
    parser.add_argument("--context", metavar="N", help="longest request, prompt and output (the model's positions)")
    parser.add_argument("--concurrency", metavar="N", default="1", help="requests of that length at once (1)")
    parser.add_argument("--weights", metavar="SIZE", help="bytes of all weights (what the files take, else counted)")


def _add_how(parser: argparse.ArgumentParser) -> None:
    """How the engine is to be run."""
    parser.add_argument("--engine", choices=("vllm", "kvist"), default="vllm", help="whose rules of blocks and memory")
    parser.add_argument("--tp", metavar="N", default="1", help="tensor parallelism (1)")
    parser.add_argument("--pp", metavar="N", default="1", help="pipeline parallelism (1)")
    parser.add_argument("--cp", metavar="N", default="1", help="decode context parallelism, within --tp (1)")
    parser.add_argument("--kv-dtype", metavar="DTYPE", default="auto", help="of keys and values (the model's own)")
    parser.add_argument(
        "--state-dtype", metavar="DTYPE", default="auto", help="of recurrent states (what the model says)"
    )
    parser.add_argument(
        "--utilization",
        metavar="F",
        help="part of the memory: of all for vLLM (0.92), of what weights and workspace leave for Kvist (0.8)",
    )
    parser.add_argument("--kv-memory", metavar="SIZE", help="or so many bytes for KV on each accelerator")
    parser.add_argument(
        "--batch-tokens", metavar="N", help="most tokens of one step (what the engine takes on such a GPU)"
    )
    parser.add_argument("--block-tokens", metavar="N", help="tokens per block (16, or 64 for latent attention)")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        0 when what is asked for fits, 1 when it does not; with --check, 0 when all that differs is explained.

    Raises:
        ConfigError: what was given cannot be.
        WireError: the server to compare with does not answer, or not as one.
    """
    # Late: the parser is built for every command and for --help, which must answer at once.
    from kvist.cli.plan_run import run_plan  # noqa: PLC0415

    return run_plan(args)
