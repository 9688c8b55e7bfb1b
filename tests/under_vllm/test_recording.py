"""What vLLM calls Kvist with is what the recordings say that it does; with KVIST_RECORD=1 they are made anew.

The default run of the tests plays the recordings (`tests/contract/test_vllm_recorded.py`).
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.vllm_replay import Replay, outcome_of, recorded
from under_vllm.conftest import MODELS, Tokens
from under_vllm.place import RECORDING, Place
from under_vllm.server import VllmServer, VllmSettings
from under_vllm.talk import forget

RECORDED = Path(__file__).parents[1] / "recorded"
BLOCKS = {"smollm2": 34, "gemma3-270m": 200}
"""So many that four requests at once do not fit."""


@pytest.mark.parametrize("name", MODELS)
def test_a_short_life(name: str, model: Callable[[str], Path], tokens: Tokens, place: Place, tmp_path: Path) -> None:
    path = tmp_path / f"vllm-0.32-{name}.jsonl"
    settings = VllmSettings(
        model=model(name),
        kvist=place.kvist("dram") | {RECORDING: str(path)},
        flags=("--max-model-len", "1024", "--num-gpu-blocks-override", str(BLOCKS[name])),
        connector=("RecordingConnector", "under_vllm.recorder"),
    )
    with VllmServer(settings) as server:
        live(server, lambda which, count: tokens(name, which, count))
        assert server.metrics()["vllm:num_preemptions_total"] > 0
    calls = recorded(path)
    replay = Replay(calls)
    replay.play()
    replay.close()
    outcome = outcome_of(calls)
    assert outcome.loaded
    assert replay.outcome.claims == outcome.claims
    assert replay.outcome.loaded == outcome.loaded
    assert sorted(replay.outcome.ends) == sorted(outcome.ends)
    if os.environ.get("KVIST_RECORD") == "1":
        shutil.copy(path, RECORDED / path.name)


def live(server: VllmServer, tokens: Callable[[int, int], list[int]]) -> None:
    """A conversation, a crowd that does not fit, and somebody who goes away."""
    said = tokens(0, 640)
    said += server.ask(said, 40).tokens
    server.ask(said, 4)
    forget(server)
    said += tokens(1, 70)
    server.ask(said, 8, cache_salt="another")
    server.ask(said, 8)
    crowd = [tokens(which, 250 + which) for which in range(4)]
    server.ask_all(crowd, 90)
    server.abandon(tokens(9, 300), after_s=1.0)
    forget(server)
    server.ask_all(crowd, 8)
