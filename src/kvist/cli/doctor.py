"""`kvist doctor`: the flags. What the command does is in `doctor_run`, imported when it runs."""

import argparse


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command and its options; loads nothing heavy."""
    parser = subparsers.add_parser(
        "doctor",
        help="find what keeps Kvist under vLLM from starting, or silently from hitting",
        description=(
            "Looks at how Kvist is set up under vLLM, and says of each thing in a sentence what it found and in "
            "another what to do. Run it in vLLM's environment, as vLLM's user, with what vLLM is started with; and "
            "again beside the running vLLM. Status 1 when there is a problem."
        ),
    )
    parser.add_argument("--vllm", action="store_true", required=True, help="under vLLM: the only thing to look at yet")
    parser.add_argument("--kv-transfer-config", metavar="JSON", help="what vLLM is given by that name")
    parser.add_argument("--config", metavar="FILE.toml", help="or the file that kvist_config names there")
    parser.add_argument(
        "--tier", metavar="NAME=SPEC", action="append", help="and the tiers of kvist_tiers; may be repeated"
    )
    parser.add_argument(
        "--prefix-caching-hash-algo", metavar="NAME", help="what vLLM is given by that name (its default, sha256)"
    )
    parser.add_argument("--model", metavar="DIR|NAME", help="the model, to compare sizes (what --url says)")
    parser.add_argument("--url", metavar="URL", help="of a running vLLM, as http://127.0.0.1:8000")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        0 when there is no problem, 1 when there is one.

    Raises:
        ConfigError: what was given contradicts itself or is none of what it should be.
    """
    # Late: the parser is built for every command and for --help, which must answer at once.
    from kvist.cli.doctor_run import run_doctor  # noqa: PLC0415

    return run_doctor(args)
