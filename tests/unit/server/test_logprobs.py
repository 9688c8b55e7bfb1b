import math

from fakes.tokenizer import END, WORD, ByteTokenizer, FallbackTokenizer
from kvist.base.ids import RequestId, TokenId
from kvist.engine.messages import TokenDrawn
from kvist.server.logprobs import LOGPROB_MIN, TokenTexts, chat_logprobs, completion_logprobs


def drawn(token: int, logprob: float, *top: tuple[int, float]) -> TokenDrawn:
    pairs = tuple((TokenId(each), value) for each, value in top)
    return TokenDrawn(request_id=RequestId("r"), token=TokenId(token), logprob=logprob, top=pairs)


def test_a_token_shows_its_text_and_bytes() -> None:
    texts = TokenTexts(ByteTokenizer())
    assert (texts.of(TokenId(65)).text, texts.of(TokenId(65)).utf8) == ("A", b"A")
    assert texts.of(END).text == "<end>"
    assert texts.of(WORD).text == " the"


def test_a_part_of_a_character_has_no_bytes_that_its_text_tells() -> None:
    token = TokenTexts(ByteTokenizer()).of(TokenId(0xF0))
    assert (token.text, token.utf8) == ("\ufffd", None)


def test_a_word_keeps_the_space_that_a_decoder_drops() -> None:
    assert FallbackTokenizer().decode([WORD]) == "the"
    assert TokenTexts(FallbackTokenizer()).of(WORD).text == " the"


def test_each_token_is_asked_for_once() -> None:
    class Counting(ByteTokenizer):
        calls = 0

        def decode(self, *args, **rest) -> str:
            self.calls += 1
            return super().decode(*args, **rest)

    tokenizer = Counting()
    texts = TokenTexts(tokenizer)
    assert [texts.of(TokenId(65)) for _ in range(5)] == [texts.of(TokenId(65))] * 5
    assert tokenizer.calls == 2


def test_the_chat_shape() -> None:
    score = TokenTexts(ByteTokenizer()).scores(drawn(65, -1.5, (66, -0.5), (65, -1.5)), text_offset=3)
    assert chat_logprobs([score]) == {
        "content": [
            {
                "token": "A",
                "logprob": -1.5,
                "bytes": [65],
                "top_logprobs": [
                    {"token": "B", "logprob": -0.5, "bytes": [66]},
                    {"token": "A", "logprob": -1.5, "bytes": [65]},
                ],
            }
        ],
        "refusal": None,
    }


def test_the_completion_shape_always_has_the_drawn_token() -> None:
    texts = TokenTexts(ByteTokenizer())
    scores = [
        texts.scores(drawn(65, -1.5, (66, -0.5)), text_offset=0),
        texts.scores(drawn(66, -2.0), text_offset=1),
    ]
    assert completion_logprobs(scores) == {
        "tokens": ["A", "B"],
        "token_logprobs": [-1.5, -2.0],
        "top_logprobs": [{"B": -0.5, "A": -1.5}, {"B": -2.0}],
        "text_offset": [0, 1],
    }


def test_of_two_tokens_with_one_text_the_likelier_is_shown() -> None:
    score = TokenTexts(ByteTokenizer()).scores(drawn(0xF1, -3.0, (0xF0, -0.5), (0xF1, -3.0)), text_offset=0)
    shape = completion_logprobs([score])
    assert shape is not None
    assert shape["top_logprobs"] == [{"\ufffd": -0.5}]


def test_what_can_not_be_is_very_unlikely() -> None:
    score = TokenTexts(ByteTokenizer()).scores(drawn(65, -math.inf), text_offset=0)
    assert score.drawn.logprob == LOGPROB_MIN


def test_nothing_asked_nothing_shown() -> None:
    assert chat_logprobs(None) is None
    assert completion_logprobs(None) is None
    assert chat_logprobs([]) == {"content": [], "refusal": None}
