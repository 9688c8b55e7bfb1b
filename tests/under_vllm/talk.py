"""What tests say to a server, and how they compare what it answers."""

import threading
from collections.abc import Callable, Sequence

from under_vllm.server import Answer, Metrics, Prompt, VllmServer

NEAR = 2e-3
"""Logprobs of float32 that differ by less were computed from the same KV, in batches of other shapes."""

_FIGURES_S = 0.3
"""Kvist's figures are sent with a step, and no more often."""


def converse(
    server: VllmServer, turns: Sequence[Prompt], *, salt: str, between: Callable[[], None] = lambda: None
) -> list[Answer]:
    """A conversation: each prompt is all that was said before, and one more turn."""
    said: list[int] = []
    answers = []
    for turn in turns:
        said += turn
        answers.append(server.ask(said, cache_salt=salt))
        said += answers[-1].tokens
        between()
    return answers


def settled(server: VllmServer) -> Metrics:
    """Metrics once everything that was offered to tiers is there or given up, and nobody waits for anything."""

    def holds(found: Metrics) -> bool:
        busy = (
            "kvist_stores_running",
            "kvist_requests_held",
            "kvist_loads_running",
            'kvist_staging_bytes{state="used"}',
        )
        of_vllm = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return not any(found.get(name, 0.0) for name in busy + of_vllm)

    quiet = 0

    def nudged() -> bool:
        nonlocal quiet
        server.ask([7, 8, 9], 2)  # figures come with steps; so few tokens are never stored
        quiet = quiet + 1 if holds(server.metrics()) else 0
        threading.Event().wait(_FIGURES_S)
        return quiet >= 3

    server.until(nudged, "something is still under way")
    return server.metrics()


def forget(server: VllmServer) -> None:
    """Leaves the prompts so far to the tiers alone."""
    settled(server)
    server.reset()


def check_same(found: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """The same tokens and logprobs to the last bit, after as many cached tokens."""
    assert [each.cached_tokens for each in found] == [each.cached_tokens for each in expected]
    for turn, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.tokens == other.tokens, f"answer {turn}"
        assert one.logprobs == other.logprobs, f"answer {turn}"


def check_near(found: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """The same answers as far as batches of other shapes allow: until two tokens were as likely as each other."""
    for turn, (one, other) in enumerate(zip(found, expected, strict=True)):
        for place, (mine, theirs) in enumerate(zip(one.logprobs, other.logprobs, strict=True)):
            apart = [abs(mine[token] - theirs[token]) for token in mine.keys() & theirs.keys()]
            assert apart, f"answer {turn}, token {place}: {mine} against {theirs}"
            assert max(apart) < NEAR, f"answer {turn}, token {place}: {mine} against {theirs}"
            if one.tokens[place] != other.tokens[place]:
                chosen = one.tokens[place]
                assert abs(theirs.get(chosen, -99.0) - theirs[other.tokens[place]]) < 2 * NEAR, f"answer {turn}"
                break
