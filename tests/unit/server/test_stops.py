from kvist.server.stops import StopStrings


def test_without_stop_strings_everything_is_shown() -> None:
    watch = StopStrings([])
    assert watch.push("anything") == ("anything", False)
    assert watch.finish() == ""


def test_a_possible_beginning_is_held_back_until_it_is_none() -> None:
    watch = StopStrings(["STOP"])
    assert watch.push("text ST") == ("text ", False)
    assert watch.push("O") == ("", False)
    assert watch.push("RM") == ("STORM", False)


def test_the_text_is_cut_where_the_stop_string_begins() -> None:
    watch = StopStrings(["STOP"])
    assert watch.push("a ST") == ("a ", False)
    assert watch.push("OP and more") == ("", True)


def test_what_is_held_is_shown_when_the_text_ends_otherwise() -> None:
    watch = StopStrings(["\n\n"])
    assert watch.push("line\n") == ("line", False)
    assert watch.finish() == "\n"
    assert watch.finish() == ""


def test_of_two_that_end_together_the_longest_counts() -> None:
    assert StopStrings(["b", "ab"]).push("xab") == ("x", True)


def test_a_match_within_a_failed_match_is_found() -> None:
    assert StopStrings(["aab"]).push("aaab") == ("a", True)
    assert StopStrings(["abcd", "bc"]).push("abce") == ("a", True)
