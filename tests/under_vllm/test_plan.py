"""vLLM's own figures of its KV memory are those of the plan; with KVIST_RECORD=1 they are recorded for the default run.

The default run holds the plan to the recorded ones (`tests/unit/app/test_plan_check.py`).
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from fakes.vllm_memory import MODELS, RECORDED, STARTED, check_equal, planned
from kvist.app.plan_reported import ask_reported
from under_vllm.server import VllmServer, VllmSettings


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("case", STARTED)
def test_blocks_and_tokens_are_those_of_the_plan(name: str, case: str, model: Callable[[str], Path]) -> None:
    with VllmServer(VllmSettings(model=model(name), flags=STARTED[case])) as server:
        reported = ask_reported(server.url)
        check_equal(planned(str(model(name)), case), reported)
        assert f"{reported.tokens:,} tokens" in server.output()
        if os.environ.get("KVIST_RECORD") == "1":
            record(name, case, server.url)


def record(name: str, case: str, url: str) -> None:
    """Writes down what a server says, in place of what was said of the same case before."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    said = {
        "model": name,
        "case": case,
        "version": httpx.get(f"{url}/version").json()["version"],
        "max_model_len": httpx.get(f"{url}/v1/models").json()["data"][0]["max_model_len"],
        "metrics": [line for line in lines if "vllm:cache_config_info" in line and not line.startswith("# HELP")],
    }
    others = [each for each in found if (each["model"], each["case"]) != (name, case)]
    RECORDED.write_text(json.dumps([*others, said], indent=1) + "\n", encoding="utf-8")
