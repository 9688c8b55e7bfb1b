"""A long prefix of a sliding-window model, on disk: only what a hit needs is stored and loaded, and it is exact."""

from pathlib import Path

import pytest

from kvist.app.engine import read_geometry
from kvist.app.locate import locate
from kvist.engine.backends.tokenizer import load_tokenizer
from kvist.engine.form import form_of
from kvist.tiers.disk_rows import place_bytes_for
from real.engine import BLOCK_TOKENS
from real.prompts import book
from real.server import RealServer

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(1800)]

PROMPT_TOKENS = 8000
OUTPUT_TOKENS = 16
SHARE_MAX = 0.30


def test_an_8000_token_prefix_takes_less_than_a_third_and_answers_the_same(tmp_path: Path) -> None:
    files = locate("gemma3-270m")
    prompt = load_tokenizer(files.directory).encode(book(30))[:PROMPT_TOKENS]
    assert len(prompt) == PROMPT_TOKENS
    flags = ("--model", "gemma3-270m", "--dtype", "float32", "--kv-memory", "512MiB", "--threads", "2")
    tiers = ("--tier", f"disk={tmp_path / 'tier'}:1GiB", "--cache-secret-file", str(tmp_path / "secret"))
    with RealServer(*flags, *tiers) as first:
        cold = first.complete(prompt, max_tokens=OUTPUT_TOKENS)
        metrics = first.metrics_when(lambda found: found["kvist_stores_running"] == 0)
    records = [form_of(group, "float32", BLOCK_TOKENS).record_bytes for group in read_geometry(files.directory).groups]
    everything = (PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK_TOKENS * sum(map(place_bytes_for, records))
    assert metrics['kvist_tier_bytes_used{tier="disk"}'] <= SHARE_MAX * everything
    with RealServer(*flags, *tiers) as second:
        warm = second.complete(prompt, max_tokens=OUTPUT_TOKENS)
        metrics = second.metrics()
    assert warm["choices"][0]["text"] == cold["choices"][0]["text"]
    cached = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    assert metrics['kvist_tokens_cached_total{tier="disk"}'] == cached
    loaded = metrics['kvist_tier_blocks_total{event="loaded",tier="disk"}']
    assert loaded * min(records) < SHARE_MAX * everything
    assert loaded < 1.2 * PROMPT_TOKENS // BLOCK_TOKENS, "every block of full attention, and one window of the others"
