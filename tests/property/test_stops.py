"""However a text is cut into parts, it is shown up to the stop string that is complete first, and no further."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvist.server.stops import StopStrings

LETTERS = st.text("abé😀", max_size=60)
STOPS = st.lists(st.text("abé😀", min_size=1, max_size=5), max_size=4)


def cut_at_first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The naive way: look at every beginning of the text, shortest first."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def parts_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted(min(cut, len(text)) for cut in cuts)
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


def shown_of(parts: list[str], stops: list[str]) -> tuple[list[str], bool]:
    watch = StopStrings(stops)
    shown = []
    for part in parts:
        text, stopped = watch.push(part)
        shown.append(text)
        if stopped:
            return shown, True
    return [*shown, watch.finish()], False


@settings(max_examples=500)
@given(LETTERS, STOPS, st.lists(st.integers(0, 60), max_size=20))
@example("aab", ["ab"], [1, 2])
@example("aabaab", ["aabaac", "b"], [])
@example("abab", ["abab", "bab"], [3])
def test_the_text_ends_before_the_first_stop_string(text: str, stops: list[str], cuts: list[int]) -> None:
    shown, stopped = shown_of(parts_of(text, cuts), stops)
    assert ("".join(shown), stopped) == cut_at_first_stop(text, stops)


@settings(max_examples=300)
@given(LETTERS, STOPS, st.lists(st.integers(0, 60), max_size=20))
def test_no_more_is_held_back_than_may_become_a_stop_string(text: str, stops: list[str], cuts: list[int]) -> None:
    watch = StopStrings(stops)
    given_so_far = shown_so_far = ""
    for part in parts_of(text, cuts):
        shown, stopped = watch.push(part)
        given_so_far, shown_so_far = given_so_far + part, shown_so_far + shown
        if stopped:
            break
        held = given_so_far[len(shown_so_far) :]
        assert held == max(
            (stop[:size] for stop in stops for size in range(len(stop)) if given_so_far.endswith(stop[:size])),
            key=len,
            default="",
        )
        assert not any(stop in shown_so_far for stop in stops)


def test_a_long_text_of_near_misses_is_shown_whole() -> None:
    text = "a" * 20_000
    stops = ["a" * 999 + "b"]
    shown, stopped = shown_of([text[index : index + 7] for index in range(0, len(text), 7)], stops)
    assert ("".join(shown), stopped) == (text, False)
