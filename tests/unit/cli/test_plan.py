"""`kvist plan` at the command line: light, quick, and one clear line about what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvist.cli.main import main

GOOD = ["plan", "--model", "llama-3.1-8b", "--gpu", "h200"]
HEAVY = ["torch", "transformers", "numpy", "safetensors", "tokenizers", "gguf", "httpx", "fastapi", "uvicorn"]

MEASURED = f"""
import json, sys, time
from kvist.cli.main import main
status = main(sys.argv[1:])
print(json.dumps([status, time.process_time(), sorted(set({HEAVY}) & set(sys.modules))]), file=sys.stderr)
"""


@pytest.mark.parametrize("model", ["deepseek-v3", "config.json"])
def test_an_answer_takes_less_than_a_second_and_loads_nothing_heavy(model: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,'
        ' "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,'
        ' "max_position_embeddings": 256}'
    )
    words = ["plan", "--model", model, "--gpu", "h200", "--tp", "2" if model == "config.json" else "8"]
    run = subprocess.run(
        [sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    status, seconds, heavy = json.loads(run.stderr.splitlines()[-1])
    assert (status, heavy) == (0, [])
    assert seconds < 1
    assert "To type" in run.stdout


def test_the_flags_load_nothing_heavy() -> None:
    program = "import sys; from kvist.cli import plan; assert not {'pydantic', 'rich', 'torch'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_fits_has_status_0_and_what_does_not_has_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(GOOD) == 0
    assert "Fits: 1 request of 131,072 tokens" in capsys.readouterr().out
    assert main([*GOOD, "--concurrency", "1000"]) == 1
    said = capsys.readouterr()
    assert "Does not fit" in said.out
    assert "What would make it fit" in said.out
    assert said.err == ""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "llama-5"], "'llama-5'"),
        (["--model", ""], "file, directory or model ''"),
        (["--gpu", "voodoo2"], "no GPU 'voodoo2'"),
        (["--gpu-memory", "lots"], "--gpu-memory 'lots' is not a size"),
        (["--gpu-memory=-80GiB"], "--gpu-memory '-80GiB' is not a size"),
        (["--weights", "0GiB"], "--weights '0GiB' is not a size"),
        (["--kv-memory", "1XB"], "--kv-memory '1XB' is not a size"),
        (["--tp", "0"], "--tp '0'"),
        (["--tp", "-1"], "--tp '-1'"),
        (["--tp", "two"], "--tp 'two'"),
        (["--tp", "3"], "tensor parallelism of 3"),
        (["--tp", "1" * 400], "--tp '111"),
        (["--pp", "1.5"], "--pp '1.5'"),
        (["--cp", "2"], "context parallelism of 2"),
        (["--context", "0"], "--context '0'"),
        (["--context", "١٢"], "--context"),
        (["--context", "200000"], "longer than the model's 131072 positions"),
        (["--concurrency", "nan"], "--concurrency 'nan'"),
        (["--kv-dtype", "fp3"], "KV dtype 'fp3'"),
        (["--state-dtype", "x" * 10_000], "state dtype 'xxx"),
        (["--utilization", "nan"], "--utilization 'nan'"),
        (["--utilization", "0"], "--utilization '0'"),
        (["--utilization", "92%"], "--utilization '92%'"),
        (["--utilization", "92"], "utilisation 92"),
        (["--gpu-tflops", "inf"], "--gpu-tflops 'inf'"),
        (["--batch-tokens", ""], "--batch-tokens ''"),
        (["--block-tokens", "17"], "blocks of 17 tokens"),
        (["--kv-memory", "999GiB"], "do not fit beside"),
    ],
    ids=lambda each: " ".join(each)[:30] if isinstance(each, list) else "",
)
def test_what_cannot_be_is_one_line_with_the_value(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*GOOD, *words]) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("kvist plan: ")
    assert complaint in line
    assert len(line) < 1_000
    assert said.out == ""


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"model_type": "llama"}', bytes(range(256)) * 16],
    ids=lambda each: repr(each[:20]),
)
def test_a_file_that_is_no_configuration_is_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert main(["plan", "--model", str(tmp_path / "config.json"), "--gpu", "h200"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("words", [["plan"], ["plan", "--gpu", "h200"], [*GOOD, "more"], [*GOOD, "--engine", "sglang"]])
def test_flags_that_make_no_sense_are_refused_with_the_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: kvist" in capsys.readouterr().err


def test_json_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GOOD, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["kv_bytes_per_token"] == 131_072
    assert said.err == ""
