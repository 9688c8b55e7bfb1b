from fakes.serving import completion, service_of
from fakes.tokenizer import ByteTokenizer
from kvist.base.units import Tokens
from kvist.server.answer import joined, usage
from kvist.server.choice import Choice, Piece
from kvist.server.schemas import CompletionBody, validated
from kvist.server.translate import completion_job


def test_pieces_join_to_one_answer() -> None:
    pieces = [Piece(index=2, text="a", scores=None), Piece(index=2, text="b", scores=None, finish="length")]
    answer = joined(pieces)
    assert (answer.index, answer.text, answer.scores, answer.finish) == (2, "ab", None, "length")


def test_scores_asked_for_stay_a_list_even_when_empty() -> None:
    assert joined([Piece(index=0, text="", scores=(), finish="abort")]).scores == ()


def test_prompts_and_their_cached_tokens_count_once_and_outputs_each(start) -> None:
    body = validated(CompletionBody, completion(prompt=["abc", "de"], n=2))
    service = service_of(start(), ByteTokenizer())
    job = completion_job(body, service)
    choices = [Choice(index, each, (), service.tokenizer, service.texts) for index, each in enumerate(job.requests)]
    # The second choice of each prompt found what the first one had stored.
    for choice, (tokens_cached, tokens_output) in zip(choices, [(2, 10), (4, 10), (1, 5), (3, 5)], strict=True):
        choice.tokens_cached, choice.tokens_output = Tokens(tokens_cached), Tokens(tokens_output)
    choices[0].prefix_end = "why"
    assert usage(job, choices, explains=False) == {
        "prompt_tokens": 7,
        "completion_tokens": 30,
        "total_tokens": 37,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    explained = usage(job, choices, explains=True)["kvist"]
    assert explained == {
        "tokens_cached": 3,
        "tokens_computed": 4,
        "prefix_end": "why",
        "sources": [],
        "decision": None,
    }
