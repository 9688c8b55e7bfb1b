"""`kvist bench` from its arguments to its report, against a real server on a loopback socket."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvist.cli.main import main

pytestmark = pytest.mark.slow

TTFT = ["ttft", "--lengths", "256,1024", "--repeats", "3", "--output-tokens", "2"]
SERVE = ["serve", "--requests", "12", "--concurrency", "3", "--prompt-tokens", "64:128", "--output-tokens", "4"]


class Bench:
    """Runs `kvist bench` against a server until the test is over."""

    def __init__(self, stack: ExitStack, running: Callable, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._stack, self._running, self._capsys = stack, running, capsys
        self.report_path = folder / "report.json"
        self.out = self.err = ""

    def run(self, server: object | str, arguments: list[str]) -> int:
        url = server if isinstance(server, str) else self._stack.enter_context(self._running(server))
        code = main(["bench", *arguments, "--url", url, "--json", str(self.report_path)])
        self.out, self.err = self._capsys.readouterr()
        return code

    def report(self) -> dict[str, object]:
        return json.loads(self.report_path.read_text())


@pytest.fixture
def bench(running: Callable, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> object:
    with ExitStack() as stack:
        yield Bench(stack, running, capsys, tmp_path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def test_ttft_finds_the_cache_and_says_why_warm_is_faster(bench: Bench, pocket: type) -> None:
    assert bench.run(pocket(), [*TTFT, "--seed", "4"]) == 0
    assert "by pairs" in bench.out
    said = r"At 1,024 tokens warm is \d+\.\dx faster \(median pair \d+\.\dx\) because 1,024 of 1,040 prompt tokens came"
    assert re.search(said, " ".join(bench.out.split()))
    report = bench.report()
    assert (report["schema"], report["seed"], report["server"]["model"]) == ("kvist.bench.ttft", 4, "pocket")
    assert len(report["requests"]) == 12
    assert {row["cached_tokens"] for row in report["requests"] if row["phase"] == "cold"} == {0}
    assert all(row["ttft_s"] > 0 for row in report["requests"])
    short, long = report["summary"]
    assert (short["prefix_tokens"], long["prefix_tokens"]) == (256, 1024)
    assert long["speedup"] == pytest.approx(long["cold_ttft_s_median"] / long["warm_ttft_s_median"])
    assert long["speedup"] > 2  # 65 blocks of hashing against 1


def test_ttft_without_a_seed_is_cold_every_time(bench: Bench, pocket: type, running: Callable) -> None:
    with running(pocket()) as url:
        assert [bench.run(url, TTFT) for _ in range(2)] == [0, 0]
        seed = str(bench.report()["seed"])
        assert bench.run(url, [*TTFT, "--seed", seed]) == 1
    assert "use another --seed" in bench.err


def test_ttft_fails_when_a_bound_is_missed_and_writes_its_report_all_the_same(bench: Bench, pocket: type) -> None:
    assert bench.run(pocket(), [*TTFT, "--max-ratio-check", "100,0.000001"]) == 1
    assert "at 1,024 tokens warm TTFT is" in bench.err
    assert "at 256" not in bench.err
    assert len(bench.report()["summary"]) == 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"counts_cached": False}, "does not say how many prompt tokens came from its cache"),
        ({"caches": False}, "took 0 of 1,040 prompt tokens from its cache"),
        ({"fault": "busy", "fault_after": 2}, "answered 503: queue is full"),
        ({"fault": "reset", "fault_after": 2}, "broke off the exchange"),
    ],
)
def test_ttft_on_a_server_that_cannot_be_measured(
    bench: Bench, pocket: type, changes: dict[str, object], complaint: str
) -> None:
    assert bench.run(pocket(**changes), TTFT) == 1
    assert complaint in bench.err
    assert "Traceback" not in bench.err
    assert not bench.report_path.exists()


def test_ttft_longer_than_the_model_is_an_error_of_arguments(bench: Bench, pocket: type) -> None:
    assert bench.run(pocket(tokens_max=1024), TTFT) == 2
    assert "takes at most 1,024 (its max_model_len)" in bench.err


def test_a_server_that_takes_neither_ids_nor_ignore_eos_is_asked_otherwise(bench: Bench, pocket: type) -> None:
    assert bench.run(pocket(takes_ids=False, takes_ignore_eos=False), TTFT) == 0
    asked_in = bench.report()["server"]["asked_in"]
    assert (asked_in["prompt"], asked_in["ignore_eos"], asked_in["usage"]) == ("text", False, True)
    assert "ignore_eos is not supported" in "".join(asked_in["refusals"])
    assert "prompts were sent as text" in bench.err


def test_serve_in_a_closed_loop(bench: Bench, pocket: type) -> None:
    assert bench.run(pocket(), SERVE) == 0
    assert "12 of 12 requests" in bench.out
    report = bench.report()
    summary = report["summary"]
    assert (summary["completed"], summary["failed"], summary["errors"]) == (12, 0, {})
    assert summary["output_tokens"] == 48
    assert 0 < summary["cached_fraction"] <= summary["reusable_fraction"] < 0.5
    assert 0 < summary["ttft_s_p50"] <= summary["ttft_s_p90"] <= summary["ttft_s_p99"] <= summary["latency_s_max"]
    assert summary["inter_token_s_count"] == 36
    assert summary["output_tokens_per_s"] == pytest.approx(48 / summary["duration_s"])
    assert [row["index"] for row in report["requests"]] == list(range(12))
    assert report["settings"]["prompt_tokens"] == [64, 128]


def test_serve_in_an_open_loop(bench: Bench, pocket: type) -> None:
    assert bench.run(pocket(), ["serve", "--requests", "20", "--rate", "400", "--output-tokens", "1"]) == 0
    rows = bench.report()["requests"]
    assert [row["started_s"] for row in rows] == sorted(row["started_s"] for row in rows)
    assert bench.report()["summary"]["inter_token_s"] is None
    assert all(row["prompt_tokens"] == 512 for row in rows)


def test_serve_twice_with_one_seed_tells_that_the_cache_was_warm(bench: Bench, pocket: type, running: Callable) -> None:
    with running(pocket()) as url:
        assert bench.run(url, SERVE) == 0
        assert "seen these prompts before" not in bench.err
        assert bench.run(url, SERVE) == 0
        assert "seen these prompts before" in bench.err
        assert bench.run(url, [*SERVE, "--seed", "1"]) == 0
        assert "seen these prompts before" not in bench.err


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("busy", "http_503"),
        ("html", "malformed"),
        ("error", "stream_error"),
        ("garbage", "malformed"),
        ("truncate", "truncated"),
        ("reset", "disconnected"),
        ("long", "oversized"),
        ("flood", "oversized"),
    ],
)
def test_serve_counts_faults_by_kind_and_goes_on(bench: Bench, pocket: type, fault: str, kind: str) -> None:
    assert bench.run(pocket(fault=fault, fault_every=4, fault_after=2), SERVE) == 1
    summary = bench.report()["summary"]
    assert summary["errors"] == {kind: 3}
    assert summary["completed"] == 9
    assert f"{kind}: 3" in bench.out
    assert "First failure: " in bench.err


def test_serve_gives_up_on_a_request_that_hangs_and_leaves_the_server(bench: Bench, pocket: type) -> None:
    server = pocket(fault="hang", fault_every=7, fault_after=2)
    assert bench.run(server, [*SERVE, "--timeout-s", "1"]) == 1
    assert bench.report()["summary"]["errors"] == {"timeout": 2}
    assert server.left.wait(10)


@pytest.mark.parametrize("arguments", [TTFT, SERVE])
def test_nobody_at_the_address_is_one_clear_line(bench: Bench, arguments: list[str]) -> None:
    assert bench.run(f"http://127.0.0.1:{free_port()}", arguments) == 1
    assert re.fullmatch(r"kvist bench: no server answers at http://127\.0\.0\.1:\d+/v1/models \(.*\); .*\n", bench.err)


@pytest.mark.parametrize("arguments", [TTFT, SERVE])
def test_a_server_of_another_kind_is_one_clear_line(
    bench: Bench, pocket: type, running: Callable, arguments: list
) -> None:
    with running(pocket()) as url:
        assert bench.run(f"{url}/elsewhere", arguments) == 1
    assert "answered 404: Not Found" in bench.err
    assert bench.err.count("\n") == 1


def test_a_model_that_is_not_served_is_an_error_of_arguments(bench: Bench, pocket: type) -> None:
    assert bench.run(pocket(), [*SERVE, "--model", "other"]) == 2
    assert "does not serve 'other'; it serves 'pocket'" in bench.err


def test_a_report_that_could_not_be_written_is_found_out_before_anything_is_sent(bench: Bench, pocket: type) -> None:
    server = pocket()
    bench.report_path.mkdir()
    assert bench.run(server, SERVE) == 2
    assert "is a directory" in bench.err
    assert server.asked == 0


def test_an_interrupted_run_ends_at_once_and_writes_nothing(pocket: type, running: Callable, tmp_path: Path) -> None:
    server, path = pocket(fault="hang"), tmp_path / "report.json"
    with running(server) as url:
        command = [sys.executable, "-m", "kvist.cli.main", "bench", *SERVE, "--url", url, "--json", str(path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert server.hanging.wait(60)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert said.strip().endswith("kvist bench: interrupted")
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_sent_and_never_reported(bench: Bench, pocket: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVIST_TEST_KEY", "s3cret")
    server = pocket()
    assert bench.run(server, [*SERVE, "--api-key-env", "KVIST_TEST_KEY"]) == 0
    assert server.keys == {"Bearer s3cret"}
    assert "s3cret" not in bench.report_path.read_text() + bench.out + bench.err


def test_the_environment_s_proxies_are_not_used(bench: Bench, pocket: type, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert bench.run(pocket(), SERVE) == 0
