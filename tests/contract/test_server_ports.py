"""What the server may rely on from each `Engine` and each `Tokenizer` of `kvist.server.ports`.

An implementation joins by one entry in ENGINES or TOKENIZERS: a context manager that gives it, ready for use.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fakes.engine import ScriptedEngine
from fakes.tokenizer import ByteTokenizer, FallbackTokenizer
from kvist.base.errors import RequestError
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.engine.backends.gguf_convert import convert
from kvist.engine.backends.tokenizer import HfTokenizer, load_tokenizer
from kvist.engine.messages import Admitted, EngineStatistics, Event, Failed, Finished, Refused, TokenDrawn
from kvist.engine.request import Request, Sampling
from kvist.engine.thread import EngineThread
from kvist.server.ports import Engine, Tokenizer
from tiny_engine import TinyEngine, subject
from tiny_gguf import TinyGguf, tiny_gemma3, tiny_llama

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@contextmanager
def scripted_engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def engine_thread() -> Iterator[EngineThread]:
    tiny = TinyEngine(subject("llama"))
    engine = EngineThread(tiny.core, tiny.limits)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


ENGINES: dict[str, Callable[[], AbstractContextManager[Engine]]] = {
    "ScriptedEngine": scripted_engine,
    "EngineThread": engine_thread,
}


@contextmanager
def byte_tokenizer() -> Iterator[Tokenizer]:
    yield ByteTokenizer()


@contextmanager
def fallback_tokenizer() -> Iterator[Tokenizer]:
    yield FallbackTokenizer()


@contextmanager
def hf_tokenizer(files: TinyGguf) -> Iterator[HfTokenizer]:
    with TemporaryDirectory() as folder:
        convert(files.write(Path(folder, "tiny.gguf")), Path(folder, "out"))
        yield load_tokenizer(Path(folder, "out"))


TOKENIZERS: dict[str, Callable[[], AbstractContextManager[Tokenizer]]] = {
    "HfTokenizer-llama": lambda: hf_tokenizer(tiny_llama()),
    "HfTokenizer-gemma3": lambda: hf_tokenizer(tiny_gemma3()),
    "ByteTokenizer": byte_tokenizer,
    "FallbackTokenizer": fallback_tokenizer,
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with ENGINES[request.param]() as engine:
        yield engine


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    with TOKENIZERS[request.param]() as tokenizer:
        yield tokenizer


class Listener:
    """Keeps the events of some requests, and waits for their ends."""

    def __init__(self) -> None:
        self.events: dict[RequestId, list[Event]] = {}
        self.threads: set[int] = set()
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.setdefault(event.request_id, []).append(event)
            self.threads.add(threading.get_ident())
            self._changed.notify_all()

    def has_ended(self, request_id: RequestId) -> bool:
        return any(isinstance(event, Finished | Refused | Failed) for event in self.events.get(request_id, ()))

    def wait_for(self, *ids: RequestId, holds: Callable[[RequestId], bool] | None = None) -> None:
        wanted = holds or self.has_ended
        with self._changed:
            assert self._changed.wait_for(lambda: all(map(wanted, ids)), 60), self.events


def request_of(name: str, **rest: object) -> Request:
    plain = Request(
        id=RequestId(name),
        tenant=TenantId("tenant"),
        prompt=tuple(map(TokenId, range(1, 20))),
        output_tokens_max=Tokens(8),
        sampling=Sampling(temperature=0.0),
        stop_tokens=frozenset(),
    )
    return replace(plain, **rest)


class TestEngine:
    def test_events_come_in_the_promised_order_and_add_up(self, engine: Engine) -> None:
        listener = Listener()
        names = [RequestId(f"r{number}") for number in range(6)]
        for name in names:
            engine.submit(request_of(name), listener)
        listener.wait_for(*names)
        for name in names:
            first, *drawn, last = listener.events[name]
            assert isinstance(first, Admitted)
            assert first.prefix_end
            assert all(isinstance(event, TokenDrawn) and event.logprob is None and not event.top for event in drawn)
            assert isinstance(last, Finished)
            assert (last.reason, last.tokens_prompt, last.tokens_output, len(drawn)) == ("length", 19, 8, 8)
            assert last.tokens_cached == first.tokens_cached
        assert threading.get_ident() not in listener.threads
        assert len(listener.threads) == 1

    def test_a_stop_token_is_delivered_and_ends_the_request(self, engine: Engine) -> None:
        listener = Listener()
        engine.submit(request_of("all"), listener)
        listener.wait_for(RequestId("all"))
        tokens = [event.token for event in listener.events[RequestId("all")] if isinstance(event, TokenDrawn)]
        engine.submit(request_of("some", stop_tokens=frozenset({tokens[3]})), listener)
        listener.wait_for(RequestId("some"))
        events = listener.events[RequestId("some")]
        drawn = [event.token for event in events if isinstance(event, TokenDrawn)]
        assert drawn == tokens[: tokens.index(tokens[3]) + 1]
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "stop"

    def test_scores_come_when_asked_for(self, engine: Engine) -> None:
        listener = Listener()
        for name, wanted in (("none", 0), ("some", 3)):
            engine.submit(request_of(name, sampling=Sampling(temperature=0.0, logprobs=wanted)), listener)
        listener.wait_for(RequestId("none"), RequestId("some"))
        for name, wanted in (("none", 0), ("some", 3)):
            for event in listener.events[RequestId(name)]:
                if isinstance(event, TokenDrawn):
                    assert event.logprob is not None
                    assert event.logprob <= 0
                    assert len(event.top) == wanted
                    assert [logprob for _, logprob in event.top] == sorted(
                        (each for _, each in event.top), reverse=True
                    )

    def test_an_abort_ends_it_once_and_may_come_at_any_time(self, engine: Engine) -> None:
        listener = Listener()
        engine.abort(RequestId("never seen"))
        name = RequestId("long")
        engine.submit(request_of(name, output_tokens_max=Tokens(20)), listener)
        for _ in range(3):
            engine.abort(name)
        listener.wait_for(name)
        last = listener.events[name][-1]
        assert isinstance(last, Finished)
        assert last.reason in {"abort", "length"}
        engine.abort(name)
        engine.submit(request_of("after"), listener)
        listener.wait_for(RequestId("after"))
        assert sum(isinstance(event, Finished) for event in listener.events[name]) == 1

    def test_the_snapshot_adds_up_when_all_is_quiet(self, engine: Engine) -> None:
        before, listener = engine.statistics(), Listener()
        names = [RequestId(f"s{number}") for number in range(3)]
        for name in names:
            engine.submit(request_of(name), listener)
        listener.wait_for(*names)
        engine.submit(request_of("last"), listener)
        listener.wait_for(RequestId("last"))
        after = engine.statistics()
        assert counted(after) - counted(before) >= 3 * (19 + 8)
        assert after.finished - before.finished >= 3
        assert min(min(each.used, each.cached, each.free) for each in after.blocks) >= 0

    def test_limits_are_positive_and_fixed(self, engine: Engine) -> None:
        limits = engine.limits
        assert limits == engine.limits
        assert min(limits.model_tokens_max, limits.prompt_tokens_max, limits.output_tokens_max, limits.vocab_size) > 0
        assert limits.longest_request_tokens > 0
        assert limits.sequences_max > 0

    def test_it_is_well(self, engine: Engine) -> None:
        assert engine.fault is None


def counted(statistics: EngineStatistics) -> int:
    return statistics.tokens_prompt_cached + statistics.tokens_prompt_computed + statistics.tokens_output


TEXTS = ["Hello", " the", "  two spaces", "Zeile\n\nZeile", "é😀日本語 नमस्ते", "\t", "a" * 500, "<end>", "\x00"]


class TestTokenizer:
    @pytest.mark.parametrize("text", TEXTS)
    def test_a_text_survives_the_way_there_and_back(self, tokenizer: Tokenizer, text: str) -> None:
        tokens = tokenizer.encode(text)
        assert all(isinstance(token, int) and token >= 0 for token in tokens)
        assert tokenizer.decode(tokens).lstrip(" ") == text.lstrip(" ")

    @pytest.mark.parametrize("text", TEXTS)
    def test_more_tokens_only_add_text(self, tokenizer: Tokenizer, text: str) -> None:
        tokens = tokenizer.encode(text)
        whole = tokenizer.decode(tokens)
        for end in range(len(tokens) + 1):
            assert whole.startswith(tokenizer.decode(tokens[:end]).rstrip(UNFINISHED))

    def test_nothing_is_no_text(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.decode([]) == ""
        assert tokenizer.decode([], special=True) == ""

    def test_stop_tokens_have_no_text_unless_asked_for(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.stop_tokens
        for token in tokenizer.stop_tokens:
            assert tokenizer.decode([token]) == ""
            assert tokenizer.decode([token], special=True) != ""

    def test_a_conversation_becomes_one_prompt(self, tokenizer: Tokenizer) -> None:
        if not tokenizer.has_chat_template:
            with pytest.raises(RequestError):
                tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
            return
        first = tokenizer.encode_chat([{"role": "user", "content": "Once upon"}])
        turns = [("user", "Once upon"), ("assistant", "a time"), ("user", "and then?")]
        more = tokenizer.encode_chat([{"role": role, "content": content} for role, content in turns])
        assert "Once upon" in tokenizer.decode(first, special=True)
        assert len(more) > len(first) > 0

    def test_decoding_runs_beside_encoding(self, tokenizer: Tokenizer) -> None:
        tokens = tokenizer.encode("beside")
        text = tokenizer.decode(tokens)
        done = threading.Event()

        def encode() -> None:
            for _ in range(200):
                tokenizer.encode("something long " * 50)
            done.set()

        encoding = threading.Thread(target=encode)
        encoding.start()
        decoded = {tokenizer.decode(tokens)}
        while not done.is_set():
            decoded.add(tokenizer.decode(tokens))
        encoding.join()
        assert decoded == {text}
