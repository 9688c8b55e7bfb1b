"""Which records an operator means: a filter over what the tiers hold, made from a selection.

Laws:
    * Who names a tenant sees and changes nothing of another one.
    * A shortened hash means one block, or none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvist.base.errors import KvistError, RequestError
from kvist.base.ids import SALTED, TENANT_DEFAULT, TenantId, TokenId
from kvist.blocks.keys import HashChain, TenantTag, tenant_tag
from kvist.server.administration_bodies import HASH_DIGITS, ListBody, PromptBody, SelectionBody, ShowBody
from kvist.server.administration_ports import KeyOf, Model
from kvist.server.errors import FAULT, ApiError
from kvist.server.ports import Tokenizer
from kvist.tiers.ports import Entry


@dataclass(slots=True, kw_only=True)
class Choice:
    """The records of one selection.

    Attributes:
        tenant: whose alone; None: anybody's.
        means: whether a record is one of them, beside being the tenant's.
        is_all_of_tenant: whether that is all that the tenant has, or all there is.
        shortened: hashes as they were given, by how many digits they have.
        found: full hashes by the given one that they begin with.
    """

    tenant: TenantTag | None
    means: Callable[[Entry], bool]
    is_all_of_tenant: bool = False
    shortened: dict[int, set[str]] = field(default_factory=dict)
    found: dict[str, set[str]] = field(default_factory=dict)

    def includes(self, entry: Entry) -> bool:
        """Whether a record is meant."""
        return self._is_tenant_s(entry) and self.means(entry)

    def unknown(self) -> list[str]:
        """Hashes that no record had."""
        return sorted(given for digits in self.shortened.values() for given in digits if given not in self.found)

    def check(self) -> None:
        """Refuses shortened hashes that mean several blocks.

        Raises:
            ApiError: naming one.
        """
        for given, hashes in self.found.items():
            if len(hashes) > 1:
                message = f"{given!r} begins the hashes of {len(hashes)} blocks; give more digits."
                raise ApiError(message, param="hashes", code="ambiguous_hash")

    def _is_tenant_s(self, entry: Entry) -> bool:
        # The stock was asked for this tenant's alone; that it gave no other's is not left to it.
        return self.tenant is None or entry.address.tenant == self.tenant

    def has_hash(self, entry: Entry) -> bool:
        """Whether the record's hash is one of those given; remembers it."""
        digits = entry.address.key.hash.hex()
        given = [digits[:length] for length, all_ in self.shortened.items() if digits[:length] in all_]
        for each in given:
            self.found.setdefault(each, set()).add(digits)
        return bool(given)


def tenant_of(body: ListBody | ShowBody | PromptBody) -> TenantId | None:
    """The tenant that a body names; None: it names none.

    Raises:
        ApiError: it names two.
    """
    is_default = getattr(body, "default_tenant", False)
    if is_default and body.tenant is not None:
        raise ApiError("'tenant' and 'default_tenant' name two tenants; send one.", param="tenant")
    if body.tenant is not None:
        return TenantId(SALTED + body.tenant)
    return TENANT_DEFAULT if is_default else None


def tag_of(body: ListBody | ShowBody | PromptBody, key_of: KeyOf | None) -> TenantTag | None:
    """The tag of the tenant that a body names; None: it names none.

    Raises:
        ApiError: it names two, or there is no secret to make the tag with.
    """
    tenant = tenant_of(body)
    if tenant is None:
        return None
    if key_of is None:
        raise ApiError(
            "Without the secret that tenants' keys are made with, no tenant can be found; name its file.",
            param="tenant",
            code="no_secret",
        )
    return tenant_tag(key_of(tenant))


def everything_of(tenant: TenantTag | None) -> Choice:
    """All that a tenant has; None: all there is."""
    return Choice(tenant=tenant, means=lambda _: True, is_all_of_tenant=True)


def choice_by_hashes(hashes: Sequence[str], tenant: TenantTag | None) -> Choice:
    """The blocks that begin with these digits."""
    choice = Choice(tenant=tenant, means=lambda _: True)
    choice.means = choice.has_hash
    for digits in hashes:
        choice.shortened.setdefault(min(len(digits), HASH_DIGITS), set()).add(digits)
    return choice


def choice_of(body: SelectionBody, key_of: KeyOf | None, model: Model | None) -> Choice:
    """What a selection means.

    Raises:
        ApiError: it says nothing, contradicts itself, or needs a model where there is none.
    """
    tag = tag_of(body, key_of)
    has_prompt = body.prompt is not None or body.messages is not None
    if body.all and (has_prompt or body.hashes or tag is not None):
        raise ApiError("'all' stands alone; leave it out to choose some.", param="all", code="invalid_value")
    if body.hashes and has_prompt:
        raise ApiError("Choose by hashes or by a prompt, not both.", param="hashes", code="invalid_value")
    if body.hashes:
        return choice_by_hashes(body.hashes, tag)
    if has_prompt:
        return _by_prompt(body, key_of, model)
    if tag is None and not body.all:
        raise ApiError("Nothing is chosen: send 'hashes', 'prompt', 'messages', 'tenant' or 'all'.", param="hashes")
    return everything_of(tag)


def tokens_of(body: PromptBody, model: Model) -> list[TokenId]:
    """The tokens of a prompt, as the model would be given them.

    Raises:
        ApiError: there is none or there are two, it is too long, the model takes no conversations, or its tokenizer
            cannot be had.
    """
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("Send either 'prompt' or 'messages'.", param="prompt", code="invalid_value")
    try:
        tokenizer = model.open_tokenizer()
    except KvistError as error:
        raise ApiError(f"The prompt cannot be read: {error}", family=FAULT, code="internal_error") from error
    tokens = _conversation(body, tokenizer) if body.prompt is None else tokenizer.encode(body.prompt)
    if len(tokens) > model.tokens_max:
        message = f"The prompt has {len(tokens)} tokens, more than the {model.tokens_max} that this server takes."
        raise ApiError(message, param="prompt", code="context_length_exceeded")
    return tokens


def _conversation(body: PromptBody, tokenizer: Tokenizer) -> list[TokenId]:
    if not tokenizer.has_chat_template:
        raise ApiError("This model has no chat template; send 'prompt'.", param="messages", code="no_chat_template")
    roles = {"developer": "system"}
    given: list[dict[str, Any]] = [
        {"role": roles.get(each.role, each.role), "content": each.content} for each in body.messages or ()
    ]
    try:
        return tokenizer.encode_chat(given)
    except RequestError as error:
        raise ApiError(str(error), param="messages", code="invalid_value") from error


def _by_prompt(body: SelectionBody, key_of: KeyOf | None, model: Model | None) -> Choice:
    if model is None or key_of is None:
        raise ApiError(
            "A prompt can be read only by a running server, which has the model's tokenizer; choose by hash, by "
            "tenant or all.",
            param="prompt",
            code="no_model",
        )
    key = key_of(tenant_of(body) or TENANT_DEFAULT)
    chain = HashChain(key, block_tokens=model.block_tokens).extend_to(tokens_of(body, model))
    hashes, namespace = frozenset(chain), model.namespace
    return Choice(
        tenant=tenant_tag(key),
        means=lambda entry: entry.address.key.hash in hashes and entry.address.key.namespace == namespace,
    )
