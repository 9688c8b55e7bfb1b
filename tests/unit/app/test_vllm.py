"""The class that vLLM loads overrides what is compared with vLLM's releases at the start, and nothing else.

vLLM itself is not installed here; what the class does inside it, tests/under_vllm show.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvist.connectors.vllm.versions import SUPPORTED

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "kvist" / "app" / "vllm.py"


def signature(function: ast.FunctionDef) -> str:
    """As in `SUPPORTED`."""
    decorators = {each.id for each in function.decorator_list if isinstance(each, ast.Name)}
    if "property" in decorators:
        return "property"
    given = function.args
    required = len(given.args) - len(given.defaults)
    shown = [each.arg + ("=" if place >= required else "") for place, each in enumerate(given.args)]
    shown += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return ("classmethod " if "classmethod" in decorators else "") + ", ".join(shown)


def overridden() -> dict[str, str]:
    """Public members of the connector's class, with what they can be called with."""
    module = ast.parse(SOURCE.read_text(encoding="utf-8"))
    (connector,) = (each for each in module.body if isinstance(each, ast.ClassDef) and each.name == "KvistConnector")
    functions = [each for each in connector.body if isinstance(each, ast.FunctionDef)]
    return {
        each.name: signature(each) for each in functions if not each.name.startswith("_") or each.name == "__init__"
    }


@pytest.mark.parametrize("release", list(SUPPORTED))
def test_whatever_is_overridden_is_compared_at_the_start(release: str) -> None:
    assert overridden() == SUPPORTED[release]


@pytest.mark.parametrize("release", list(SUPPORTED))
def test_nothing_is_overridden_by_mistake(release: str) -> None:
    path = ROOT / "tests" / "recorded" / f"vllm-signatures-{release}.json"
    recorded = json.loads(path.read_text(encoding="utf-8"))
    theirs = {name for members in recorded.values() for name in members}
    module = ast.parse(SOURCE.read_text(encoding="utf-8"))
    inner = {
        each.name
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == "KvistConnector"
        for each in node.body
        if isinstance(each, ast.FunctionDef)
    }
    assert inner & theirs == overridden().keys()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.31.2", "vLLM 0.31.2 is not supported; install one of these releases: 0.32, 0.33"),
        ("0.34.0", "vLLM 0.34.0 is not supported; install one of these releases: 0.32, 0.33"),
        ("0.33.1", "vLLM 0.33.1 differs from the 0.33 that is supported: No module named 'vllm.distributed'"),
    ],
)
def test_a_release_from_which_nothing_can_be_imported_is_refused_with_the_list(
    tmp_path: Path, version: str, said: str
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(f"__version__ = {version!r}")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    program = [sys.executable, "-c", "import kvist.app.vllm"]
    answer = subprocess.run(program, check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert answer.returncode == 1
    assert f"kvist.base.errors.ConfigError: {said}" in answer.stderr
