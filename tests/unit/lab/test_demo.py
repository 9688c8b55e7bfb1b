import asyncio
import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from kvist.base.errors import ConfigError
from kvist.lab.client import ServedModel
from kvist.lab.demo import DemoResult, DemoSettings, Turn, explain_demo, render_demo, run_demo
from kvist.lab.failure import CallError

TINY = ServedModel(name="tiny", tokens_max=4096)


def held(opened: Callable, model: ServedModel = TINY, **settings: object) -> DemoResult:
    async def go() -> DemoResult:
        async with opened() as client:
            return await run_demo(client, model, DemoSettings(**settings) if settings else None)

    return asyncio.run(go())


def turn(prompt: int, cached: int, ttft_s: float) -> Turn:
    return Turn(question="?", answer="!", prompt_tokens=prompt, cached_tokens=cached, output_tokens=1, ttft_s=ttft_s)


RESULT = DemoResult(model="tiny", endpoint="chat/completions", cold=turn(2048, 0, 2.0), warm=turn(2096, 2048, 0.05))


def shown(result: DemoResult) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(render_demo(result))
    return console.file.getvalue()


def test_the_follow_up_needs_only_its_last_words_computed(opened: Callable) -> None:
    result = held(opened, chat=True)
    assert result.endpoint == "chat/completions"
    assert result.cold.cached_tokens == 0
    assert result.cold.ttft_s == pytest.approx(0.001 * result.cold.prompt_tokens)
    assert result.warm.prompt_tokens > result.cold.prompt_tokens > 800  # 80 lines of more than 10 words
    assert 0 < result.warm.computed_tokens < 60
    assert result.warm.ttft_s == pytest.approx(0.001 * result.warm.computed_tokens)
    assert result.speedup == pytest.approx(result.cold.ttft_s / result.warm.ttft_s)


def test_a_chat_carries_its_earlier_turns(opened: Callable, simulated: object) -> None:
    result = held(opened)
    warm_up, first, second = simulated.bodies
    assert "prompt" in warm_up
    assert [message["role"] for message in first["messages"]] == ["user"]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][0] == first["messages"][0]
    assert second["messages"][1]["content"] == result.cold.answer != ""
    assert second["messages"][2]["content"] == result.warm.question


def test_a_model_without_a_chat_template_is_asked_in_plain_text(opened: Callable, simulated: object) -> None:
    simulated.takes_chat = False
    result = held(opened)
    assert result.endpoint == "completions"
    assert simulated.bodies[-1]["prompt"].startswith(simulated.bodies[-2]["prompt"])
    assert 0 < result.warm.computed_tokens < 60
    with pytest.raises(CallError, match="no chat template"):
        held(opened, chat=True)


def test_who_knows_that_there_is_no_template_does_not_try(opened: Callable, simulated: object) -> None:
    assert held(opened, chat=False).endpoint == "completions"
    assert all("prompt" in body for body in simulated.bodies)


def test_the_warm_up_leaves_the_first_question_cold(opened: Callable) -> None:
    assert held(opened, chat=False).cold.cached_tokens == 0


def test_the_document_shrinks_to_what_the_model_takes(opened: Callable, simulated: object) -> None:
    held(opened, ServedModel(name="tiny", tokens_max=512))
    short = simulated.bodies[1]["messages"][0]["content"]
    assert short.count("Entry") == (512 - 2 * 24 - 160) // 32
    with pytest.raises(ConfigError, match="takes 200 tokens"):
        held(opened, ServedModel(name="tiny", tokens_max=200))


def test_a_server_without_counts_cannot_be_shown(opened: Callable, simulated: object) -> None:
    simulated.counts = False
    with pytest.raises(CallError, match="sent no token counts"):
        held(opened)


def test_a_server_that_fails_is_not_taken_for_one_without_chat(opened: Callable, simulated: object) -> None:
    simulated.unknown = ("temperature",)
    with pytest.raises(CallError, match="unknown field temperature"):
        held(opened)


def test_the_table_and_its_sentence_say_why_the_second_was_faster() -> None:
    text = shown(RESULT)
    for part in ("2,048", "2,096", "2.00 s", "50.0 ms", "40.0x", "first question (cold)", "follow-up (warm)"):
        assert part in text
    assert explain_demo(RESULT) == (
        "The second turn was faster: 2,048 of 2,096 prompt tokens were already in KV blocks; only the last 48 were"
        " prefilled."
    )
    assert max(map(len, text.splitlines())) <= 80


def test_a_model_s_name_cannot_draw_on_the_terminal() -> None:
    text = shown(replace(RESULT, model="[red]x[/y]\x1b[2J\n" + "z" * 500))
    assert "[red]x[/y]" in text
    assert "\x1b" not in text
    assert "z" * 61 not in text


def test_a_demonstration_that_failed_says_so() -> None:
    missed = replace(RESULT, warm=turn(2096, 0, 2.0))
    assert "computed from scratch" in explain_demo(missed)
    slower = replace(RESULT, warm=turn(2096, 2048, 3.0))
    assert explain_demo(slower).startswith("The second turn was not faster")
