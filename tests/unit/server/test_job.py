from fakes.serving import completion, service_of
from fakes.tokenizer import ByteTokenizer
from kvist.server.schemas import CompletionBody, validated
from kvist.server.translate import completion_job


def test_a_prompt_counts_once_however_many_choices_it_has(start) -> None:
    service = service_of(start(), ByteTokenizer())
    for n in (1, 3):
        job = completion_job(validated(CompletionBody, completion(prompt=[[1, 2], [3]], n=n)), service)
        assert (job.tokens_prompt, len(job.requests)) == (3, 2 * n)
