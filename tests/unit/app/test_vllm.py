"""The class that vLLM loads overrides what is compared with vLLM's releases at the start, and nothing else.

vLLM itself is not installed here; what the class does inside it, tests/under_vllm show.
"""

import ast
import json
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
