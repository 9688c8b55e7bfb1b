import argparse
import subprocess
import sys

import pytest

from kvist.cli.bench import add_parser, run


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="kvist")
    add_parser(made.add_subparsers())
    return made


def parsed(parser: argparse.ArgumentParser, *arguments: str) -> argparse.Namespace:
    return parser.parse_args(["bench", *arguments])


def refused(parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parsed(parser, *arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_ttft_has_defaults_that_answer_the_usual_question(parser: argparse.ArgumentParser) -> None:
    args = parsed(parser, "ttft")
    assert (args.url, args.model, args.json, args.seed) == ("http://127.0.0.1:8000", None, None, None)
    assert (args.lengths, args.suffix, args.repeats, args.output_tokens) == ((1024, 2048, 4096), 16, 5, 1)
    assert (args.token_ids, args.timeout_s, args.max_ratio_check) == ((1000, 20000), 600.0, None)
    assert (args.benchmark, args.run) == ("ttft", run)


def test_serve_has_defaults_of_its_own(parser: argparse.ArgumentParser) -> None:
    args = parsed(parser, "serve")
    assert (args.requests, args.concurrency, args.rate, args.seed) == (64, 8, None, 0)
    assert (args.prompt_tokens, args.output_tokens, args.shared_prefix_ratio) == ((512, 512), (64, 64), 0.5)


def test_lengths_ratios_and_ranges_are_read(parser: argparse.ArgumentParser) -> None:
    args = parsed(parser, "ttft", "--lengths", "64, 16,32", "--max-ratio-check", "0.1,0.05,0.025", "--token-ids", "5:5")
    assert (args.lengths, args.max_ratio_check, args.token_ids) == ((16, 32, 64), (0.1, 0.05, 0.025), (5, 5))
    args = parsed(parser, "serve", "--prompt-tokens", "10:20", "--output-tokens", "3", "--rate", "2.5")
    assert (args.prompt_tokens, args.output_tokens, args.rate) == ((10, 20), (3, 3), 2.5)


@pytest.mark.parametrize(
    "text", ["0", "-1", "1.5", "", "many", "1e3", "nan", "1_000", "\uff11\uff12", "9" * 5000, "1000001"]
)
def test_a_count_is_a_positive_whole_number_within_reason(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    complaint = refused(parser, capsys, "serve", f"--requests={text}")
    assert "argument --requests: " in complaint
    assert "is not a whole number from 1 to 1,000,000" in complaint


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "inf", "-inf", "", "half"])
def test_a_ratio_is_between_0_and_1(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    complaint = refused(parser, capsys, "serve", f"--shared-prefix-ratio={text}")
    assert "is not a number from 0 to 1" in complaint


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["ttft", "--lengths", "1024,0"], "'0' is not a whole number"),
        (["ttft", "--lengths", "1024,,2048"], "'' is not a whole number"),
        (["ttft", "--lengths", "16,32,16"], "'16,32,16' names a length twice"),
        (["ttft", "--lengths", "99999999999"], "from 1 to 10,000,000"),
        (["ttft", "--suffix", "0"], "argument --suffix"),
        (["ttft", "--repeats", "0"], "argument --repeats"),
        (["ttft", "--output-tokens", "-1"], "argument --output-tokens"),
        (["ttft", "--seed", "-1"], "argument --seed"),
        (["ttft", "--max-ratio-check", "0"], "argument --max-ratio-check"),
        (["ttft", "--max-ratio-check", "0.1,nan"], "argument --max-ratio-check"),
        (["ttft", "--timeout-s", "0"], "argument --timeout-s"),
        (["ttft", "--timeout-s", "1e9"], "from 0.001 to 86400"),
        (["ttft", "--token-ids", "20:10"], "its minimum is above its maximum"),
        (["ttft", "--token-ids", "1:2:3"], "'2:3' is not a whole number"),
        (["ttft", "--token-ids", "5:"], "'' is not a whole number"),
        (["serve", "--concurrency", "0"], "argument --concurrency"),
        (["serve", "--concurrency", "10001"], "argument --concurrency"),
        (["serve", "--rate", "0"], "argument --rate"),
        (["serve", "--rate", "nan"], "argument --rate"),
        (["serve", "--rate", "1", "--concurrency", "2"], "not allowed with argument"),
        (["serve", "--prompt-tokens", "0:5"], "argument --prompt-tokens"),
        (["serve", "--output-tokens", "5:1"], "argument --output-tokens"),
        (["serve", "--lengths", "5"], "unrecognized arguments"),
        (["other"], "invalid choice: 'other'"),
        ([], "required"),
    ],
)
def test_arguments_that_cannot_work_are_named(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert complaint in refused(parser, capsys, *arguments)


@pytest.mark.parametrize("arguments", [["--help"], ["ttft", "--help"], ["serve", "--help"]])
def test_help_can_be_printed(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(parser, *arguments)
    assert caught.value.code == 0
    assert "usage: kvist bench" in capsys.readouterr().out


def test_reading_arguments_loads_nothing_heavy() -> None:
    code = (
        "import argparse, sys; from kvist.cli.bench import add_parser; p = argparse.ArgumentParser();"
        "add_parser(p.add_subparsers()); p.parse_args(['bench', 'ttft']);"
        "print(sorted({'httpx', 'rich', 'asyncio', 'pydantic', 'psutil'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
