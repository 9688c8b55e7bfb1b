from fakes.tokenizer import END, ByteTokenizer
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.engine.messages import Admitted, Finished, FinishReason, TokenDrawn
from kvist.engine.request import Request, Sampling
from kvist.server.choice import Choice, Piece
from kvist.server.logprobs import TokenTexts

R = RequestId("r")


def choice_of(*stops: str, logprobs: int | None = None, stop_tokens: frozenset[TokenId] = frozenset({END})) -> Choice:
    request = Request(
        id=R,
        tenant=TenantId("t"),
        prompt=(TokenId(1),),
        output_tokens_max=Tokens(100),
        sampling=Sampling(logprobs=logprobs),
        stop_tokens=stop_tokens,
    )
    tokenizer = ByteTokenizer()
    return Choice(4, request, stops, tokenizer, TokenTexts(tokenizer))


def push(choice: Choice, data: bytes) -> list[Piece]:
    pieces = [choice.push(TokenDrawn(request_id=R, token=TokenId(each), logprob=-1.0)) for each in data]
    return [piece for piece in pieces if piece is not None]


def finish(choice: Choice, reason: FinishReason) -> Piece:
    return choice.finish(
        Finished(
            request_id=R,
            reason=reason,
            tokens_prompt=Tokens(1),
            tokens_cached=Tokens(0),
            tokens_output=choice.tokens_output,
            preemptions=0,
        )
    )


def test_text_comes_in_pieces_of_the_choice() -> None:
    pieces = push(choice_of(), b"Hi")
    assert [(piece.index, piece.text, piece.finish, piece.scores) for piece in pieces] == [
        (4, "H", None, None),
        (4, "i", None, None),
    ]


def test_the_end_carries_its_reason_and_what_was_held() -> None:
    choice = choice_of("!!")
    push(choice, b"Hi!")
    assert (finish(choice, "length").text, choice.tokens_output) == ("!", 3)
    half = choice_of()
    push(half, b"a\xf0")
    piece = finish(half, "abort")
    assert (piece.text, piece.finish) == ("\ufffd", "abort")


def test_a_stop_token_is_counted_and_not_shown() -> None:
    choice = choice_of(logprobs=0)
    push(choice, b"a")
    assert choice.push(TokenDrawn(request_id=R, token=END, logprob=-0.5)) is None
    piece = finish(choice, "stop")
    assert (piece.text, piece.finish, choice.tokens_output) == ("", "stop", 2)
    assert piece.scores is not None
    assert [score.drawn.token.text for score in piece.scores] == ["<end>"]


def test_a_stop_token_that_ends_nothing_is_a_token_like_others() -> None:
    choice = choice_of(stop_tokens=frozenset())
    assert choice.push(TokenDrawn(request_id=R, token=END)) is None
    assert [piece.text for piece in push(choice, b"a")] == ["a"]


def test_a_stop_string_ends_the_choice_at_once() -> None:
    choice = choice_of("STOP")
    assert [(piece.text, piece.finish) for piece in push(choice, b"xSTOP")] == [("x", None), ("", "stop")]
    assert choice.tokens_output == 5


def test_a_stop_string_completed_by_what_was_unfinished_stops_too() -> None:
    choice = choice_of("\ufffd")
    assert [piece.text for piece in push(choice, b"a\xf0")] == ["a"]
    piece = finish(choice, "length")
    assert (piece.text, piece.finish) == ("", "stop")


def test_scores_ride_with_the_text_they_became() -> None:
    pieces = push(choice_of(logprobs=0), "é!".encode())
    assert [(piece.text, len(piece.scores or ())) for piece in pieces] == [("é", 2), ("!", 1)]
    assert [score.text_offset for piece in pieces for score in piece.scores or ()] == [0, 0, 1]


def test_what_the_cache_gave_is_noted() -> None:
    choice = choice_of()
    choice.admit(Admitted(request_id=R, tokens_cached=Tokens(7), prefix_end="new"))
    assert (choice.tokens_cached, choice.prefix_end) == (7, "new")
