"""A tokenizer without a vocabulary: a token is a byte, but for a few special ones."""

from collections.abc import Mapping, Sequence

from kvist.base.errors import RequestError
from kvist.base.ids import TokenId

BEGIN, END, TURN, WORD = (TokenId(256 + each) for each in range(4))
SPECIAL = {BEGIN: b"<begin>", END: b"<end>", TURN: b"<turn>"}
WORDS = {WORD: b" the"}


class ByteTokenizer:
    """Byte-level, as GPT-2's descendants are, without merges; takes any text and gives any bytes back."""

    stop_tokens = frozenset({END})

    def __init__(self, *, has_chat_template: bool = True) -> None:
        self.has_chat_template = has_chat_template

    def encode(self, text: str) -> list[TokenId]:
        return [BEGIN, *map(TokenId, text.encode())]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[TokenId]:
        if messages[0]["role"] == "assistant":
            raise RequestError("a conversation begins with the user or the system, not the assistant", param="messages")
        tokens = [BEGIN]
        for message in messages:
            tokens += [TURN, *map(TokenId, f"{message['role']}\n{message['content']}".encode())]
        return [*tokens, TURN, *map(TokenId, b"assistant\n")]

    def decode(self, tokens: Sequence[TokenId], *, special: bool = False) -> str:
        return b"".join(_bytes_of(token, special) for token in tokens).decode("utf-8", errors="replace")


def _bytes_of(token: TokenId, special: bool) -> bytes:
    if token in SPECIAL:
        return SPECIAL[token] if special else b""
    return WORDS[token] if token in WORDS else bytes([token])


class FallbackTokenizer(ByteTokenizer):
    """SentencePiece with byte fallback: words begin with a space, and a run of byte tokens is decoded as a whole.

    Token 259 is the word " the"; the space before the first word of a text is dropped; a run of byte tokens that is
    not UTF-8 becomes one U+FFFD per byte.
    """

    def decode(self, tokens: Sequence[TokenId], *, special: bool = False) -> str:
        parts: list[str] = []
        run = bytearray()
        for token in [*tokens, None]:
            if token is not None and token < 256:
                run.append(token)
            elif token is None or token not in SPECIAL or special:
                parts.append(_decoded_run(bytes(run)))
                run.clear()
                parts.append("" if token is None else _bytes_of(token, special).decode())
        text = "".join(parts)
        return text.removeprefix(" ")


def _decoded_run(run: bytes) -> str:
    try:
        return run.decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(run)
