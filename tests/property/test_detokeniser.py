"""However an output is cut into tokens, its parts joined are its decoded whole, and no part is ever taken back."""

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.tokenizer import BEGIN, END, TURN, WORD, ByteTokenizer, FallbackTokenizer
from kvist.base.ids import TokenId
from kvist.server.detokeniser import UNFINISHED, Detokeniser

SPECIALS = st.sampled_from([BEGIN, END, TURN])
SEVERAL_BYTES = st.text(st.characters(min_codepoint=0x80, codec="utf-8"), max_size=6)


def of_text(text: str) -> list[TokenId]:
    return [TokenId(each) for each in text.encode()]


CLEAN = st.text(st.characters(codec="utf-8", exclude_characters=UNFINISHED), max_size=40)
TEXT_TOKENS = CLEAN.map(of_text)
ANY_TOKENS = st.lists(st.integers(0, 259).map(TokenId), max_size=60)
GARBAGE = st.lists(st.one_of(st.integers(0x80, 0xFF).map(TokenId), SPECIALS), max_size=60)
WRITTEN = st.lists(st.one_of(TEXT_TOKENS, st.just([WORD]), SPECIALS.map(lambda token: [token])), max_size=12).map(
    lambda parts: [token for part in parts for token in part]
)


class VaryingVocabulary:
    """Byte-level, with tokens of any bytes: token n stands for the nth part of a text."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts

    def decode(self, tokens: Sequence[TokenId]) -> str:
        return b"".join(self._parts[token] for token in tokens).decode("utf-8", errors="replace")


def parts_of(detokeniser: Detokeniser, tokens: Sequence[TokenId]) -> list[str]:
    parts = [detokeniser.push(token) for token in tokens]
    return [*parts, detokeniser.finish()]


@settings(max_examples=300)
@given(st.lists(st.one_of(st.binary(max_size=7), SEVERAL_BYTES.map(str.encode)), max_size=40))
@example([b"\xf0", b"\x9f", b"\x98", b"\x80"])
@example([b"\xff"] * 30)
@example([b"\xe2", b"", b"", b"", b"", b"", b"", b"", b"", b"", b"\x82\xac"])
def test_any_bytes_in_any_tokens(parts: list[bytes]) -> None:
    vocabulary = VaryingVocabulary(parts)
    tokens = [TokenId(each) for each in range(len(parts))]
    assert "".join(parts_of(Detokeniser(vocabulary.decode), tokens)) == vocabulary.decode(tokens)


@settings(max_examples=300)
@given(st.text(max_size=40), st.data())
def test_no_part_of_a_text_shows_half_a_character(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=20)))
    parts = [encoded[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    detokeniser = Detokeniser(VaryingVocabulary(parts).decode)
    shown = parts_of(detokeniser, [TokenId(each) for each in range(len(parts))])
    assert "".join(shown) == text
    assert sum(part.count(UNFINISHED) for part in shown) == text.count(UNFINISHED)


@settings(max_examples=200)
@given(st.one_of(ANY_TOKENS, GARBAGE), ANY_TOKENS)
def test_a_context_changes_nothing_for_bytes(tokens: list[TokenId], context: list[TokenId]) -> None:
    decode = ByteTokenizer().decode
    whole, before = decode(context + tokens), decode(context)
    shown = "".join(parts_of(Detokeniser(decode, context), tokens))
    if not before.endswith(UNFINISHED):
        assert before + shown == whole
    else:
        assert shown == decode(tokens)


@settings(max_examples=300)
@given(WRITTEN)
@example([WORD, *of_text("€€€😀"), WORD])
@example([WORD, TURN, WORD, WORD])
def test_byte_fallback_gives_valid_text_whole(tokens: list[TokenId]) -> None:
    decode = FallbackTokenizer().decode
    assert "".join(parts_of(Detokeniser(decode), tokens)) == decode(tokens)


@settings(max_examples=200)
@given(WRITTEN, WRITTEN.filter(bool))
def test_the_first_word_after_a_context_keeps_its_space(tokens: list[TokenId], context: list[TokenId]) -> None:
    decode = FallbackTokenizer().decode
    context = [*context, *of_text("a")]
    assert decode(context) + "".join(parts_of(Detokeniser(decode, context), tokens)) == decode(context + tokens)


@settings(max_examples=300)
@given(ANY_TOKENS)
@example([*of_text("é"), TokenId(0xFF), *of_text("a")])
def test_byte_fallback_never_loses_a_finished_character(tokens: list[TokenId]) -> None:
    decode = FallbackTokenizer().decode
    shown = "".join(parts_of(Detokeniser(decode), tokens))
    # A wrong byte turns its whole run into U+FFFD when decoded at once; what was valid before it stays valid here.
    assert len(shown.replace(UNFINISHED, "")) >= len(decode(tokens).replace(UNFINISHED, ""))


class CountingDecoder:
    """Counts the tokens that it is asked to decode."""

    def __init__(self) -> None:
        self.tokens = 0
        self._tokenizer = ByteTokenizer()

    def decode(self, tokens: Sequence[TokenId]) -> str:
        self.tokens += len(tokens)
        return self._tokenizer.decode(tokens)


@settings(max_examples=30, deadline=None)
@given(st.one_of(ANY_TOKENS, GARBAGE, WRITTEN).filter(bool), st.integers(1, 40))
@example([TokenId(0xFF)], 2000)
@example([END], 2000)
@example([TokenId(0xE2), *[END] * 50], 40)
def test_a_token_costs_the_same_however_long_the_output(tokens: list[TokenId], times: int) -> None:
    counting = CountingDecoder()
    parts_of(Detokeniser(counting.decode), tokens * times)
    # In the worst case five places to cut are tried, each with a decoding of all 8 + 8 tokens in view.
    assert counting.tokens <= 200 * (len(tokens) * times + 1)
