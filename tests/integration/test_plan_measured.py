"""A plan against Kvist's own engine as it runs: its tensors to the byte, its weights and workspace as measured."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kvist.app.plan import Answer, Ask, GpuAsk, answered
from kvist.base.units import Bytes
from kvist.cli.main import main
from real.server import RealServer

pytestmark = [pytest.mark.model, pytest.mark.slow]

MIB = 2**20
MEMORY = "16GiB"
MODELS = ("smollm2", "gemma3-270m")
KV_MIB = (64, 200, 777)
SEQUENCES, TOKENS, STEP_TOKENS = 16, 2048, 512
WITHIN = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A server, and what was planned for it; `directory` is that of its model."""

    server: RealServer
    directory: str
    kv_mib: int

    @property
    def answer(self) -> Answer:
        """The plan for what the server was started with."""
        return answered(
            Ask(
                model=self.directory,
                gpu=GpuAsk(memory=Bytes(2**34)),
                rules="kvist",
                context=TOKENS,
                concurrency=SEQUENCES,
                step_tokens=STEP_TOKENS,
                kv_memory=Bytes(self.kv_mib * MIB),
            )
        )


@pytest.fixture(scope="module", params=[(name, size) for name in MODELS for size in KV_MIB], ids=str)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    name, kv_mib = request.param
    flags = ["--model", name, "--kv-memory", f"{kv_mib}MiB", "--sequences-max", str(SEQUENCES)]
    flags += ["--model-tokens-max", str(TOKENS), "--step-tokens", str(STEP_TOKENS)]
    with RealServer(*flags) as server:
        yield Case(server=server, directory=server.get("/v1/models").json()["data"][0]["root"], kv_mib=kv_mib)


def test_kv_bytes_are_those_of_the_tensors(case: Case) -> None:
    """`kvist_kv_bytes` is what the engine's tensors take in memory."""
    metrics, plan = case.server.metrics(), case.answer.plan
    blocks = zip(plan.blocks, plan.block_bytes_per_rank, strict=True)
    assert metrics["kvist_kv_bytes"] == sum(count * size for count, size in blocks)
    assert metrics["kvist_kv_bytes_per_token"] == plan.kv_bytes_per_token


def test_weights_and_workspace_are_within_a_fifth_of_what_is_measured(case: Case, measured) -> None:
    metrics, plan = case.server.metrics(), case.answer.plan
    weights, workspace = metrics["kvist_weights_bytes"], metrics["kvist_workspace_bytes"]
    measured(
        f"weights {weights / MIB:.1f} MiB, planned {plan.weights_bytes / MIB:.1f};"
        f" workspace {workspace / MIB:.1f} MiB, planned {plan.workspace_bytes_per_rank / MIB:.1f}"
    )
    assert plan.weights_bytes == pytest.approx(weights, rel=0.01)
    assert plan.weights_bytes + plan.workspace_bytes_per_rank == pytest.approx(weights + workspace, rel=WITHIN)


def test_the_command_finds_nothing_that_it_can_not_explain(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--engine", "kvist", "--model", case.directory, "--gpu-memory", MEMORY, "--json"]
    assert main([*words, "--check", case.server.url]) == 0
    check = json.loads(capsys.readouterr().out)["check"]
    assert (check["explained"], check["doubts"]) == (True, [])
    assert any(reason.startswith("sequences at once: planned 1, the server has 16") for reason in check["reasons"])
    told = [*words, "--kv-memory", f"{case.kv_mib}MiB", "--context", str(TOKENS), "--concurrency", str(SEQUENCES)]
    assert main([*told, "--batch-tokens", str(STEP_TOKENS), "--check", case.server.url]) == 0
    check = json.loads(capsys.readouterr().out)["check"]
    differences = {each["name"]: each["difference"] for each in check["figures"]}
    estimated = {name: differences.pop(name) for name in ("weights_bytes", "workspace_bytes")}
    assert not any(differences.values())
    assert len(check["reasons"]) == sum(map(bool, estimated.values()))
