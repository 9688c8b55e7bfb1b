"""The memory that a running server says it takes is what its files, its pool and its process really take."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from kvist.app.engine import read_geometry
from kvist.base.units import Tokens, format_bytes, parse_bytes
from kvist.planner.budget import KvLimits, KvPlan, plan_kv
from real.server import Metrics, RealServer

pytestmark = [pytest.mark.model, pytest.mark.slow]

TOKENS_MAX = 8192
KV_BYTES = 200 * 2**20
STEP_TOKENS = 1024
SEQUENCES_MAX = 16
GROWTH_SLACK = 64 * 2**20
"""What else a process takes while it answers: the request, and products of sizes that the measured step had not. Each
such size is compiled and kept, 0.7 MB, so there are few in attention of many rows and in projections of many
(`kvist.engine.backends.cpu.many` and `products`).
"""

LENGTHS_FIRST = (*range(32, 65, 16), *range(96, 257, 32), *range(320, 513, 64))
"""One length for each height that projections of up to 512 rows have."""

LENGTHS_LATER = range(35, 512, 10)
LENGTHS_SLACK = 24 * 2**20
"""What requests of 48 more lengths may add; compiled for each of them, a layer's four projections would add 125 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A server that has answered one request of the longest length.

    Attributes:
        directory: of its model.
        shown: the rows of the budget that it showed at start.
        metrics: after the answer.
        usage: of the answer.
        before, peak: bytes resident before the request, and at most while it ran.
        after_first, after_later: bytes resident after requests of `LENGTHS_FIRST`, and of `LENGTHS_LATER` after them.
    """

    directory: Path
    shown: dict[str, str]
    metrics: Metrics
    usage: dict[str, object]
    before: int
    peak: int
    after_first: int
    after_later: int


def rows_shown(output: str) -> dict[str, str]:
    """Name and value of each row of the budget."""
    return dict(re.findall(r"^│ (\S.*?) +│ (\S.*?) +│$", output, re.MULTILINE))


def start_peak(pid: int) -> None:
    """Starts a process's resident peak anew; see proc(5)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak(pid: int) -> int:
    """Most bytes that a process had in memory since then."""
    (line,) = re.findall(r"^VmHWM:\s*(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(line) * 1024


def resident(server: RealServer) -> int:
    """Bytes that it has in memory."""
    found: int = psutil.Process(server.process.pid).memory_info().rss
    return found


def resident_after(server: RealServer, lengths: Iterable[int]) -> int:
    """Bytes in memory after prompts of these lengths, none of which begins as another does."""
    for length in lengths:
        prompt = [(length * 7919 + index * 31) % 40_000 + 100 for index in range(length)]
        usage = server.complete(prompt, max_tokens=1)["usage"]
        assert isinstance(usage, dict)
        assert usage["prompt_tokens"] == length
    return resident(server)


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def found(request: pytest.FixtureRequest) -> Iterator[Measured]:
    flags = {
        "--model": request.param,
        "--kv-memory": str(KV_BYTES),
        "--model-tokens-max": str(TOKENS_MAX),
        "--step-tokens": str(STEP_TOKENS),
        "--sequences-max": str(SEQUENCES_MAX),
    }
    with RealServer(*(word for flag in flags.items() for word in flag)) as server:
        root = server.get("/v1/models").json()["data"][0]["root"]
        server.complete([5, 6, 7])
        before = resident(server)
        start_peak(server.process.pid)
        prompt = [(index * 7919) % 40_000 + 100 for index in range(TOKENS_MAX - 8)]
        usage = server.complete(prompt, max_tokens=8, ignore_eos=True)["usage"]
        metrics, highest = server.metrics(), peak(server.process.pid)
        yield Measured(
            directory=Path(root),
            shown=rows_shown(server.output()),
            metrics=metrics,
            usage=usage,
            before=before,
            peak=highest,
            after_first=resident_after(server, LENGTHS_FIRST),
            after_later=resident_after(server, LENGTHS_LATER),
        )


def planned(directory: Path) -> KvPlan:
    limits = KvLimits(
        dtype="bfloat16",
        block_tokens=16,
        step_tokens=STEP_TOKENS,
        sequences_max=SEQUENCES_MAX,
        model_tokens_max=Tokens(TOKENS_MAX),
        window_checkpoint_tokens=Tokens(4096),
    )
    return plan_kv(read_geometry(directory), KV_BYTES, limits)


def blocks_of(metrics: Metrics) -> list[int]:
    """Blocks of each KV group, whatever their state."""
    groups: dict[str, int] = {}
    for name, value in metrics.items():
        if match := re.match(r'kvist_kv_blocks\{group="(\d+)"', name):
            groups[match[1]] = groups.get(match[1], 0) + int(value)
    return [groups[group] for group in sorted(groups)]


def layers_by_group(config: dict[str, object]) -> list[int]:
    """Layers that look back without a bound, and those with a window, if there are any."""
    types = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    return [count for kind in ("full_attention", "sliding_attention") if (count := types.count(kind))]


def test_the_longest_request_was_answered(found: Measured) -> None:
    assert found.usage["prompt_tokens"] == TOKENS_MAX - 8
    assert found.usage["completion_tokens"] == 8
    assert found.shown["longest single request"] == "8,192 tokens"


def test_kv_bytes_are_what_the_planner_and_the_configuration_say(found: Measured) -> None:
    plan, blocks = planned(found.directory), blocks_of(found.metrics)
    assert blocks == list(plan.blocks)
    assert found.metrics["kvist_kv_bytes"] == plan.bytes_used <= KV_BYTES
    config = json.loads((found.directory / "config.json").read_text())
    numbers_per_layer = config["num_key_value_heads"] * 2 * config["head_dim"]
    layers = layers_by_group(config)
    bf16_bytes = sum(each * numbers_per_layer * 2 * 16 * count for each, count in zip(layers, blocks, strict=True))
    assert found.metrics["kvist_kv_bytes"] == bf16_bytes
    assert found.metrics["kvist_kv_bytes_per_token"] == sum(layers) * numbers_per_layer * 2
    assert found.shown["KV pool"].startswith(format_bytes(bf16_bytes))


def test_weights_are_the_bytes_in_the_files(found: Measured) -> None:
    payload = 0
    for path in found.directory.glob("*.safetensors"):
        with path.open("rb") as file:
            payload += path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")
    assert payload > 0
    assert found.shown["weights"] == format_bytes(payload)


def test_the_process_grows_by_no_more_than_its_workspace(found: Measured, measured: Callable[[str], None]) -> None:
    workspace = parse_bytes(found.shown["workspace of a full step, measured"])
    growth = found.peak - found.before
    measured(f"a request of {TOKENS_MAX} tokens took {format_bytes(growth)}, workspace {format_bytes(workspace)}")
    assert growth <= 1.2 * workspace + GROWTH_SLACK


def test_weights_pool_and_workspace_are_most_of_the_process(found: Measured, measured: Callable[[str], None]) -> None:
    names = ("weights", "workspace of a full step, measured", "KV pool")
    accounted = sum(parse_bytes(found.shown[name].split(" (")[0]) for name in names)
    measured(f"peak {format_bytes(found.peak)}, of which {format_bytes(accounted)} are in the budget")
    # The rest is the interpreter with torch and transformers, about as much in every process.
    assert found.peak - accounted <= 800 * 2**20


def test_lengths_that_were_not_seen_before_take_no_memory_of_their_own(
    found: Measured, measured: Callable[[str], None]
) -> None:
    first, later = found.after_first - found.peak, found.after_later - found.after_first
    counts = len(LENGTHS_FIRST), len(LENGTHS_LATER)
    measured(f"{counts[0]} lengths added {first / 2**20:.1f} MiB to the peak, {counts[1]} more {later / 2**20:.1f} MiB")
    assert first <= GROWTH_SLACK
    assert later <= LENGTHS_SLACK
