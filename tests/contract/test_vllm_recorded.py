"""What a real vLLM called its connector with, played to the scheduler's side over a fabric: it answers as it did there.

The recordings are short lives of real models with one tier: conversations, equal prompts, a crowd that is preempted, a
client that goes away. `scripts/test-vllm` plays each new life too, and makes them anew with KVIST_RECORD=1.
"""

import json
from pathlib import Path

import pytest

from fakes.vllm_replay import Replay, outcome_of, recorded

RECORDINGS = sorted((Path(__file__).parents[1] / "recorded").glob("vllm-*.jsonl"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_life_is_answered_as_it_was(path: Path) -> None:
    calls = recorded(path)
    replay = Replay(calls)
    replay.play()
    replay.close()
    expected = outcome_of(calls)
    assert expected.loaded, "nothing was loaded when this was recorded"
    assert replay.outcome.claims == expected.claims
    assert replay.outcome.loaded == expected.loaded
    assert replay.outcome.stored == expected.stored
    assert sorted(replay.outcome.ends) == sorted(expected.ends)


def test_there_is_a_life_with_one_group_and_one_with_several() -> None:
    groups = {recorded(path)[0]["groups_in_all"] for path in RECORDINGS}
    assert min(groups) == 1
    assert max(groups) > 1


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_that_says_otherwise_is_seen(path: Path, tmp_path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    place = next(number for number, line in enumerate(lines) if '"answer": [' in line and ", true]" in line)
    call = json.loads(lines[place])
    call["answer"][0] += 32
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join([*lines[:place], json.dumps(call), *lines[place + 1 :]]), encoding="utf-8")
    with pytest.raises(AssertionError, match="get_num_new_matched_tokens"):
        Replay(recorded(other)).play()
