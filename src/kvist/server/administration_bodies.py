"""What the operator's commands are told, field by field. Types are strict and nothing unknown passes."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from kvist.server.schemas import Label, Message

HASHES_MAX = 10_000
HASH_DIGITS_MIN = 8
HASH_DIGITS = 64
LISTED_MAX = 100_000
LISTED_DEFAULT = 100
PROMPT_CHARACTERS_MAX = 8 * 2**20
LOOK_S = 60.0
"""How long tiers may take to say what they hold."""
CHANGE_S = 600.0
"""How long a change of many records may take."""

_HEX = frozenset("0123456789abcdef")


def _hash(value: str) -> str:
    digits = value.lower()
    if not HASH_DIGITS_MIN <= len(digits) <= HASH_DIGITS or not _HEX.issuperset(digits):
        raise ValueError(f"must be {HASH_DIGITS} hexadecimal digits, or at least the first {HASH_DIGITS_MIN} of them")
    return digits


Hash = Annotated[str, AfterValidator(_hash)]
Seconds = Annotated[float, Field(gt=0, le=86_400, strict=False)]
"""A whole number of seconds is one too."""

Name = Annotated[str, Field(min_length=1, max_length=32)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class PromptBody(_Body):
    """A prompt, as text or as a conversation.

    Attributes:
        prompt: text, as a completion would send it.
        messages: a conversation, as a chat would send it.
        tenant: the salt of the requests that are meant; None: the tenant of those without one.
    """

    prompt: Annotated[str, Field(min_length=1, max_length=PROMPT_CHARACTERS_MAX)] | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=100_000, fail_fast=True)] | None = None
    tenant: Label | None = None


class ExplainBody(PromptBody):
    """Body of `explain`; either prompt or messages."""


class ListBody(_Body):
    """Body of `list`.

    Attributes:
        tier: None: all.
        tenant: a salt; None, without `default_tenant`: whoever has something.
        default_tenant: the tenant of requests without a salt.
        limit: records shown.
    """

    tier: Name | None = None
    tenant: Label | None = None
    default_tenant: bool = False
    limit: Annotated[int, Field(ge=1, le=LISTED_MAX)] = LISTED_DEFAULT


class ShowBody(_Body):
    """Body of `show`."""

    hash: Hash
    tenant: Label | None = None
    default_tenant: bool = False


class SelectionBody(PromptBody):
    """Which records a command is about: hashes, a prompt's, a tenant's, or all; hashes and prompts of a tenant too.

    Attributes:
        hashes: of blocks, possibly shortened.
        default_tenant: as in `ListBody`.
        all: whoever's, whatever it is.
        tier: where; None: in every tier.
        timeout_s: how long each tier may take; what is not done by then is told.
    """

    hashes: Annotated[list[Hash], Field(max_length=HASHES_MAX, fail_fast=True)] = []
    default_tenant: bool = False
    all: bool = False
    tier: Name | None = None
    timeout_s: Seconds = CHANGE_S


class CopyBody(SelectionBody):
    """Body of `copy` and of `move`: from one tier to another."""

    source: Name
    target: Name


class PrefetchBody(SelectionBody):
    """Body of `prefetch`: from wherever it is, fastest tier first, to one tier."""

    target: Name


class TiersBody(_Body):
    """Body of `tiers`: nothing."""
