"""One conversation about one long document: what a second question costs when the first one's KV is kept.

The first question is cold: the server computes the whole document. The follow-up carries the document, the first
question and its answer again, as every chat does, and needs only its last words computed. A short warm-up of
other text goes first, so that one-time costs of a process that has just started do not flatter the second turn.
"""

from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvist.base.errors import ConfigError
from kvist.lab.answer import Answer, Endpoint, Usage
from kvist.lab.client import Client, ServedModel
from kvist.lab.document import TOKENS_PER_LINE, TOKENS_PER_LINE_MAX, inventory
from kvist.lab.failure import CallError, excerpt
from kvist.lab.tables import seconds

_FIRST_QUESTION = "Which entries are in the attic? Name two."
_FOLLOW_UP = "And who counted the goods of entry 3?"
_AROUND_TOKENS = 160  # questions, headings and a chat template with its system prompt, generously
_NO_CHAT = (400, 404, 405, 422, 501)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The conversation to hold.

    Attributes:
        prompt_tokens: length of the document, about; less when the model takes less.
        output_tokens: length of each answer at most.
        seed: what the document follows from; a fresh one for a server that has held this conversation before.
        chat: whether the model has a chat template; None tries and sees.
    """

    prompt_tokens: int = 2000
    output_tokens: int = 24
    seed: int = 0
    chat: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question and its answer.

    Attributes:
        question: as asked.
        answer: as streamed.
        prompt_tokens: length of the prompt, the document and earlier turns included.
        cached_tokens: of these from the cache.
        output_tokens: length of the answer.
        ttft_s: time to first token.
    """

    question: str
    answer: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that had to be prefilled."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the conversation showed.

    Attributes:
        model: its name.
        endpoint: where it was asked.
        cold: the first turn; warm: the follow-up.
    """

    model: str
    endpoint: Endpoint
    cold: Turn
    warm: Turn

    @property
    def speedup(self) -> float:
        """Cold time to first token over warm."""
        return self.cold.ttft_s / self.warm.ttft_s


async def run_demo(client: Client, model: ServedModel, settings: DemoSettings | None = None) -> DemoResult:
    """Holds the conversation with a server.

    Args:
        client: the server.
        model: whom to ask; its `tokens_max`, when known, bounds the document.
        settings: the conversation; None takes the defaults.

    Raises:
        ConfigError: the model takes too few tokens for even a short document.
        CallError: a call failed, or the server does not report cached tokens.
    """
    settings = settings or DemoSettings()
    document = inventory(_lines(model, settings), settings.seed)
    await _ask(client, model, settings, ("completions", inventory(8, settings.seed + 1)))
    talk = [f"Here is an inventory.\n\n{document}\n\n{_FIRST_QUESTION}"]
    endpoint, first = await _open_conversation(client, model, settings, talk)
    talk += [first.text, _FOLLOW_UP]
    second = await _ask(client, model, settings, (endpoint, _prompt(endpoint, talk)))
    return DemoResult(
        model=model.name,
        endpoint=endpoint,
        cold=_turn(_FIRST_QUESTION, first, client.url),
        warm=_turn(_FOLLOW_UP, second, client.url),
    )


def explain_demo(result: DemoResult) -> str:
    """Why the second turn was faster, or that it was not, in a sentence or two."""
    warm = result.warm
    if warm.cached_tokens == 0:
        return "The second turn was computed from scratch: none of its prompt tokens were in KV blocks."
    fact = (
        f"{warm.cached_tokens:,} of {warm.prompt_tokens:,} prompt tokens were already in KV blocks;"
        f" only the last {warm.computed_tokens:,} were prefilled."
    )
    verdict = "faster" if result.speedup > 1 else "not faster on this machine just now"
    return f"The second turn was {verdict}: {fact}"


def render_demo(result: DemoResult) -> Group:
    """The result as a small table and the sentence that explains it."""
    title = Text(f"One conversation about one document ({excerpt(result.model, 60)})", style="table.title")
    table = Table(title=title, title_justify="left")
    for heading in ("", "prompt tokens", "from cache", "prefilled", "TTFT"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, turn in (("first question (cold)", result.cold), ("follow-up (warm)", result.warm)):
        counts = (turn.prompt_tokens, turn.cached_tokens, turn.computed_tokens)
        table.add_row(name, *(f"{count:,}" for count in counts), seconds(turn.ttft_s))
    table.add_section()
    table.add_row("speed-up", "", "", "", f"{result.speedup:.1f}x")
    return Group(table, Text(explain_demo(result)))


def _lines(model: ServedModel, settings: DemoSettings) -> int:
    lines = settings.prompt_tokens // TOKENS_PER_LINE
    if model.tokens_max is not None:
        room = model.tokens_max - 2 * settings.output_tokens - _AROUND_TOKENS
        lines = min(lines, room // TOKENS_PER_LINE_MAX)
    if lines < 1:
        raise ConfigError(
            f"{model.name!r} takes {model.tokens_max} tokens and a document of {settings.prompt_tokens} was asked for;"
            f" the demonstration needs about {TOKENS_PER_LINE_MAX + 2 * settings.output_tokens + _AROUND_TOKENS}"
        )
    return lines


async def _open_conversation(
    client: Client, model: ServedModel, settings: DemoSettings, talk: list[str]
) -> tuple[Endpoint, Answer]:
    """Asks the first question, as a chat where the model can chat."""
    if settings.chat is not False:
        try:
            chat = _prompt("chat/completions", talk)
            return "chat/completions", await _ask(client, model, settings, ("chat/completions", chat))
        except CallError as error:
            if settings.chat or error.status not in _NO_CHAT:
                raise
    return "completions", await _ask(client, model, settings, ("completions", _prompt("completions", talk)))


def _prompt(endpoint: Endpoint, talk: list[str]) -> object:
    """A conversation, user first and in turns, in the form that an endpoint takes."""
    if endpoint == "completions":
        asked = [f"{said}\nAnswer:" if turn % 2 == 0 else f"{said}\n\n" for turn, said in enumerate(talk)]
        return "".join(asked)
    return [{"role": "assistant" if turn % 2 else "user", "content": said} for turn, said in enumerate(talk)]


async def _ask(client: Client, model: ServedModel, settings: DemoSettings, question: tuple[Endpoint, object]) -> Answer:
    endpoint, prompt = question
    body = {
        "model": model.name,
        "prompt" if endpoint == "completions" else "messages": prompt,
        "max_tokens": settings.output_tokens,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    return await client.stream(endpoint, body, output_tokens=settings.output_tokens)


def _turn(question: str, answer: Answer, url: str) -> Turn:
    usage: Usage | None = answer.usage
    if usage is None:
        raise CallError(
            f"{url} sent no token counts although asked to (stream_options.include_usage)", kind="malformed"
        )
    return Turn(
        question=question,
        answer=answer.text,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens or 0,
        output_tokens=answer.output_tokens,
        ttft_s=answer.ttft_s,
    )
