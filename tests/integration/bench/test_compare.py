"""The comparison of engines runs on a tiny model, every child ends, and what is read from replies is what they say."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from kvist.base.errors import ConfigError
from tiny_directory import write_tiny_directory

FOLDER = Path(__file__).parents[3] / "bench" / "peers"
SIZES = {"short": 20, "middle": 40, "long": 50, "longer": 70, "output": 97}


def load(name: str) -> ModuleType:
    """One of the scripts' modules, which are no package."""
    spec = importlib.util.spec_from_file_location(f"bench_peers_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


metrics = load("metrics")


def compare(*arguments: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({} if cache is None else {"KVIST_CACHE": str(cache)})
    command = [sys.executable, str(FOLDER / "compare.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def reply(*times_s: tuple[float, ...], tokens: int) -> object:
    return metrics.Reply(tokens=tokens, times_s=times_s, cached=(0,) * len(times_s))


@pytest.mark.slow
def test_every_engine_meets_every_task_and_ends(tmp_path: Path) -> None:
    model, report = write_tiny_directory(tmp_path / "model"), tmp_path / "report.json"
    sizes = [text for name, size in SIZES.items() for text in (f"--{name}", str(size))]
    flags = ["--peers", "transformers", "--rounds", "2", "--slow-rounds", "1", "--starts", "1", "--threads", "1"]
    own = ["--model", str(model), "--dtype", "float32", "--id-max", "200", "--kv-mib", "16", "--json", str(report)]
    done = compare(*own, *flags, *sizes, cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    content = json.loads(report.read_text())
    assert content["schema"] == "kvist.bench.peers"
    assert content["failures"] == []
    assert content["versions"].keys() == {"kvist", "torch", "transformers"}
    assert all(sample["seconds"] > 0 for sample in content["samples"])
    whole = {"prefill 1 x 50", "warm_ttft 1 x 50", "decode 1 x 50", "decode 1 x 20", "together 8 x 20", "whole 8 x 20"}
    slow = {"decode 1 x 70", "together 8 x 40", "whole 8 x 40"}
    for stage, least in (("child", slow), ("http", slow - {"decode 1 x 70"})):
        mine = [each for each in content["samples"] if (each["stage"], each["engine"]) == (stage, "kvist")]
        assert {each["metric"] for each in mine if each["round"] == 0} == whole | least
        assert {each["metric"] for each in mine if each["round"] == 1} == whole
    assert {each["metric"] for each in content["samples"] if each["stage"] == "start"} == {"ready", "first_answer"}
    summary = {each["metric"]: each for each in content["summary"]}
    assert summary.keys() == {"prefill 1 x 50", "decode 1 x 70", "whole 8 x 20"}
    for each in summary.values():
        assert each["peer"] == each["mode"] == "transformers"
        assert each["ratio_median"] == pytest.approx(each["theirs_s_median"] / each["ours_s_median"])
        assert each["is_reached"] == (each["ratio_median"] >= each["goal"])
    left = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])]
    assert not [line for line in left if line and str(model) in line]


@pytest.mark.slow
def test_a_stage_that_fails_is_told_and_the_others_are_kept(tmp_path: Path) -> None:
    model, report = write_tiny_directory(tmp_path / "model"), tmp_path / "report.json"
    own = ["--model", str(model), "--dtype", "float32", "--id-max", "200", "--kv-mib", "16", "--json", str(report)]
    flags = ["--peers", "transformers", "--rounds", "1", "--starts", "1", "--threads", "1", "--stages", "child,start"]
    done = compare(*own, *flags, "--long", "100000", "--output", "2", cache=tmp_path / "cache")
    assert done.returncode == 1
    assert "the limit is 511" in done.stderr
    content = json.loads(report.read_text())
    assert len(content["failures"]) == 1
    assert content["failures"][0].startswith("child: ")
    assert {each["stage"] for each in content["samples"]} == {"start"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "no-such-model"], "no model 'no-such-model'"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--output", "1"], "--output must be at least 2"),
        (["--peers", "llama"], "'llama' is none of vllm, transformers"),
        (["--json", "/"], "names no file"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags: list[str], words: str) -> None:
    done = compare(*flags)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_tokens_are_counted_from_when_all_have_begun_to_when_one_ends() -> None:
    assert metrics.inter_token_s(reply((3.0, 3.5, 4.0), tokens=3)) == 0.5
    assert metrics.together_s(reply((1.0, 2.0, 3.0), (2.0, 3.0, 4.0), tokens=3)) == 0.5
    late = reply((1.0, 2.0), (3.0, 4.0), tokens=2)
    with pytest.raises(ConfigError, match="ended before another began"):
        metrics.together_s(late)


def test_a_piece_of_several_tokens_counts_as_many() -> None:
    assert metrics.inter_token_s(reply((0.0, 1.0, 2.0), tokens=5)) == 0.5
    assert metrics.together_s(reply((0.0, 1.0, 2.0), (0.0, 1.0, 2.0), tokens=5)) == pytest.approx(0.25)


def test_the_fastest_mode_of_a_peer_counts_and_only_common_rounds() -> None:
    def sample(metric: str, engine: str, turn: int, seconds: float) -> object:
        return metrics.Sample(stage="child", metric=metric, round=turn, engine=engine, seconds=seconds)

    read = [("kvist", 0, 1.0), ("kvist", 1, 2.0), ("kvist", 2, 9.0), ("vllm eager", 0, 3.0), ("vllm eager", 1, 3.0)]
    read += [("vllm compiled", 0, 1.5), ("vllm compiled", 1, 2.0)]
    for metric, ratios, reached in (("decode 1 x 3", (1.0, 1.5), False), ("warm_ttft 1 x 3", (2 / 3, 1.0), False)):
        (found,) = metrics.summarise([sample(metric, *each) for each in read])
        assert (found.peer, found.mode, found.ratio.count) == ("vllm", "vllm compiled", 2)
        assert (found.ratio.min, found.ratio.max) == ratios
        assert found.is_reached is reached


def test_an_engine_that_keeps_nothing_has_a_part_in_what_it_can_do() -> None:
    planned = metrics.tasks(**SIZES)
    theirs = [metrics.without_prefixes(task) for task in planned]
    assert [each and each.kinds for each in theirs] == [("prefill",), None, ("whole",), ("decode",), None]
    for task, each in zip(planned, theirs, strict=True):
        assert each is None or (each.prompts, each.tokens, each.again) == (task.prompts, task.tokens, 0)
