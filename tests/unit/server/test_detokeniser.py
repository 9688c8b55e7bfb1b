from fakes.tokenizer import END, WORD, ByteTokenizer, FallbackTokenizer
from kvist.server.detokeniser import Detokeniser


def pushed(detokeniser: Detokeniser, tokens: bytes) -> list[str]:
    return [detokeniser.push(token) for token in tokens]


def test_plain_text_comes_at_once() -> None:
    assert pushed(Detokeniser(ByteTokenizer().decode), b"ab c") == ["a", "b", " ", "c"]


def test_a_character_comes_with_its_last_byte() -> None:
    detokeniser = Detokeniser(ByteTokenizer().decode)
    assert pushed(detokeniser, "a😀é".encode()) == ["a", "", "", "", "😀", "", "é"]
    assert detokeniser.finish() == ""


def test_what_stays_unfinished_shows_at_the_end() -> None:
    detokeniser = Detokeniser(ByteTokenizer().decode)
    assert pushed(detokeniser, b"a\xf0\x9f") == ["a", "", ""]
    assert detokeniser.finish() == "\ufffd"
    assert detokeniser.finish() == ""


def test_wrong_bytes_do_not_hold_back_what_follows() -> None:
    detokeniser = Detokeniser(ByteTokenizer().decode)
    assert "".join(pushed(detokeniser, b"\xff" * 100)).count("\ufffd") >= 100 - 8
    assert pushed(detokeniser, b"a")[0].endswith("a")


def test_a_special_token_has_no_text_even_within_a_character() -> None:
    detokeniser = Detokeniser(ByteTokenizer().decode)
    assert pushed(detokeniser, bytes([0xC3])) == [""]
    assert [detokeniser.push(END) for _ in range(50)] == [""] * 50
    assert pushed(detokeniser, bytes([0xA9])) == ["é"]


def test_the_first_word_keeps_its_space_after_a_prompt_and_loses_it_without() -> None:
    decode = FallbackTokenizer().decode
    assert Detokeniser(decode, [END, *b"Once upon"]).push(WORD) == " the"
    assert Detokeniser(decode).push(WORD) == "the"


def test_a_prompt_that_ends_within_a_character_gives_no_context() -> None:
    assert Detokeniser(ByteTokenizer().decode, [0xF0, 0x9F]).push(ord("a")) == "a"


def test_a_character_finished_before_a_wrong_byte_of_its_run_stays() -> None:
    decode = FallbackTokenizer().decode
    detokeniser = Detokeniser(decode)
    assert decode(b"\xc3\xa9\xff") == "\ufffd" * 3
    assert [*pushed(detokeniser, b"\xc3\xa9\xff"), detokeniser.finish()] == ["", "é", "", "\ufffd"]
