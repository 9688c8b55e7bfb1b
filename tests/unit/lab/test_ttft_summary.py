import pytest

from kvist.lab.ttft import TtftRow
from kvist.lab.ttft_summary import explain_ttft, shortfalls, summarise_ttft


def row(prefix: int, phase: str, ttft_s: float, cached: int | None, repeat: int = 0) -> TtftRow:
    return TtftRow(
        prefix_tokens=prefix,
        repeat=repeat,
        phase=phase,
        ttft_s=ttft_s,
        latency_s=ttft_s,
        prompt_tokens=prefix + 16,
        cached_tokens=cached,
        output_tokens=1,
    )


def pairs(prefix: int, times: list[tuple[float, float]], cached: int | None) -> list[TtftRow]:
    return [
        row(prefix, phase, time_s, cached if phase == "warm" else 0, repeat)
        for repeat, both in enumerate(times)
        for phase, time_s in zip(("cold", "warm"), both, strict=True)
    ]


def test_a_length_is_summed_up_by_medians_and_by_pairs() -> None:
    (found,) = summarise_ttft(pairs(1024, [(1.0, 0.1), (2.0, 0.1), (9.0, 0.3)], 1024))
    assert (found.cold_ttft_s.median, found.warm_ttft_s.median, found.speedup) == (2.0, 0.1, pytest.approx(20))
    assert found.speedup_pairwise.median == pytest.approx(20)
    assert (found.speedup_pairwise.min, found.speedup_pairwise.max) == (pytest.approx(10), pytest.approx(30))
    assert (found.prefix_tokens, found.prompt_tokens, found.cached_tokens) == (1024, 1040, 1024)


def test_lengths_come_shortest_first_whatever_the_order_of_the_rows() -> None:
    rows = pairs(64, [(1.0, 0.5)], 64) + pairs(32, [(1.0, 0.25)], 32)
    assert [(found.prefix_tokens, found.speedup) for found in summarise_ttft(rows)] == [(32, 4.0), (64, 2.0)]


def test_a_miss_among_the_warm_ones_shows() -> None:
    missed = [row(64, "cold", 1.0, 0), row(64, "warm", 1.0, None)]
    rows = pairs(64, [(1.0, 0.5), (1.0, 0.5), (1.0, 0.5)], 64) + missed
    (found,) = summarise_ttft(rows)
    assert (found.cached_tokens, found.cached_tokens_min) == (64, 0)


def test_the_explanation_says_what_was_computed_and_never_claims_a_speed_up_that_is_none() -> None:
    (faster,) = summarise_ttft(pairs(1024, [(1.0, 0.1)], 1024))
    assert explain_ttft(faster) == (
        "At 1,024 tokens warm is 10.0x faster (median pair 10.0x) because 1,024 of 1,040 prompt tokens came from the"
        " cache and only 16 were computed."
    )
    (slower,) = summarise_ttft(pairs(64, [(1.0, 1.25)], 64))
    assert "warm is not faster (0.80x) although 64 of 80" in explain_ttft(slower)


def test_bounds_are_held_against_the_ratio_of_medians() -> None:
    found = summarise_ttft(pairs(64, [(1.0, 0.25)], 64) + pairs(128, [(1.0, 0.125)], 128))
    assert shortfalls(found, (0.25, 0.125)) == ()
    (missed,) = shortfalls(found, (0.25, 0.1))
    assert missed == (
        "at 128 tokens warm TTFT is 0.1250 of cold, above the bound of 0.1 (8.0x instead of at least 10.0x)"
    )
