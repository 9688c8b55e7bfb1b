import pytest

from kvist.lab.draw import Span
from kvist.lab.serve import Broken, Completed, ServeRun
from kvist.lab.serve_summary import ServeSummary, remarks, summarise_serve
from kvist.lab.workload import ServeWorkload, plan_serve

PLAN = plan_serve(
    ServeWorkload(
        requests=4,
        prompt_tokens=Span(low=100, high=100),
        output_tokens=Span(low=3, high=3),
        shared_prefix_ratio=0.5,
        token_ids=Span(low=0, high=99),
        seed=0,
    )
)


def completed(index: int, **changes: object) -> Completed:
    values = {"index": index, "started_s": 0.0, "late_s": 0.0, "ttft_s": 1.0, "latency_s": 2.0, "gaps_s": (0.25, 0.75)}
    values |= {"prompt_tokens": 100, "tokens_shared": 50, "cached_tokens": 32, "output_tokens": 3}
    return Completed(**(values | {"output_tokens_asked": 3} | changes))


def broken(index: int, kind: str) -> Broken:
    return Broken(index=index, started_s=0.0, error_kind=kind, error="no")


def summed(*rows: Completed | Broken) -> ServeSummary:
    return summarise_serve(ServeRun(rows=rows, duration_s=4.0), PLAN)


def test_rates_count_completed_work_over_the_whole_run() -> None:
    found = summed(completed(0), completed(1), completed(2), broken(3, "timeout"))
    assert (found.requests, found.completed, found.failed, found.errors) == (4, 3, 1, {"timeout": 1})
    assert (found.requests_per_s, found.output_tokens_per_s, found.total_tokens_per_s) == (0.75, 2.25, 77.25)
    assert (found.prompt_tokens, found.output_tokens, found.duration_s) == (300, 9, 4.0)


def test_latencies_are_percentiles_of_the_completed_ones() -> None:
    found = summed(completed(0, ttft_s=1.0), completed(1, ttft_s=3.0), completed(2, ttft_s=2.0), broken(3, "timeout"))
    assert (found.ttft_s.p50, found.ttft_s.max, found.ttft_s.count) == (2.0, 3.0, 3)
    assert (found.inter_token_s.count, found.inter_token_s.p50) == (6, 0.5)
    assert found.time_per_output_token_s.p50 == 0.5
    assert found.latency_s.mean == 2.0


def test_hits_are_a_part_of_all_prompt_tokens() -> None:
    found = summed(completed(0, cached_tokens=None), completed(1, cached_tokens=48), completed(2), completed(3))
    assert (found.cached_tokens, found.cached_fraction) == (112, 112 / 400)
    assert found.reusable_fraction == 150 / 400
    assert remarks(found) == ()


def test_a_server_that_never_counts_hits_has_none_known() -> None:
    found = summed(*(completed(index, cached_tokens=None) for index in range(4)))
    assert (found.cached_tokens, found.cached_fraction) == (None, None)
    assert "does not say" in remarks(found)[0]


def test_more_hits_than_the_run_explains_are_remarked_on() -> None:
    found = summed(*(completed(index, cached_tokens=96) for index in range(4)))
    (remark,) = remarks(found)
    assert remark.startswith("96.0% of the prompt tokens were cached")
    assert "at most 37.5%" in remark
    assert "--seed" in remark


def test_a_run_without_a_single_answer_has_no_latencies() -> None:
    found = summed(broken(0, "connect"), broken(1, "http_503"), broken(2, "connect"), broken(3, "timeout"))
    assert found.errors == {"connect": 2, "http_503": 1, "timeout": 1}
    assert (found.ttft_s, found.inter_token_s, found.time_per_output_token_s, found.latency_s) == (None,) * 4
    assert (found.completed, found.requests_per_s, found.late_s_max) == (0, 0.0, 0.0)


def test_short_answers_and_a_late_client_are_remarked_on() -> None:
    found = summed(completed(0, output_tokens=1, gaps_s=()), completed(1, late_s=1.5), completed(2), completed(3))
    assert (found.short_answers, found.late_s_max) == (1, 1.5)
    short, late = remarks(found)
    assert short.startswith("1 of 4 answers were shorter")
    assert "1.50 s after their planned time" in late


@pytest.mark.parametrize("late_s", [0.0, 0.1])
def test_a_client_on_time_is_not_remarked_on(late_s: float) -> None:
    assert remarks(summed(*(completed(index, late_s=late_s) for index in range(4)))) == ()
