"""The page about the HTTP API names every parameter, error and metric that there is."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes.engine import ScriptedEngine
from fakes.serving import app_of, ask
from fakes.tokenizer import ByteTokenizer
from kvist.fabric.messages import FabricStatistics, TierBooks, TierName
from kvist.server.neutral import CHAT, COMPLETION, LABELS
from kvist.server.schemas import ChatBody, CompletionBody
from kvist.server.tier_metrics import fabric_metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/http-api.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([a-z_]+)`", PAGE))


def test_every_parameter_is_named_and_no_other() -> None:
    parameters = set(ChatBody.model_fields) | set(CompletionBody.model_fields)
    known = parameters | CHAT.keys() | COMPLETION.keys() | LABELS.keys()
    assert known <= NAMED
    tables = PAGE[PAGE.index("## Parameters") : PAGE.index("## Answers")]
    first_cells = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", tables, re.MULTILINE)
    listed = {name for cell in first_cells for name in re.findall(r"`([a-z_]+)`", cell)} - {"false", "true"}
    assert listed <= known


def test_every_code_is_named() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src/kvist/server").glob("*.py"))
    codes = {code for source in sources for code in re.findall(r'code="([a-z_]+)"', source)}
    assert len(codes) > 10
    assert codes <= NAMED


@pytest.fixture
def metrics() -> set[str]:
    engine = ScriptedEngine()
    text = ask(app_of(engine, ByteTokenizer()), "/metrics").text
    engine.close()
    counted = {"counter": "_total"}
    tiers = fabric_metrics(
        FabricStatistics(
            tiers=(TierBooks(name=TierName("disk")),),
            loads_running=0,
            stores_running=0,
            stores_dropped=0,
            staging_bytes_used=0,
            staging_bytes=0,
        )
    )
    families = (*text_string_to_metric_families(text), *tiers)
    return {family.name + counted.get(family.type, "") for family in families}


def test_every_metric_is_named_and_no_other(metrics: set[str]) -> None:
    described = {name for name in NAMED if name.startswith("kvist_")}
    assert {name for name in metrics if not name.endswith("_created")} == described
