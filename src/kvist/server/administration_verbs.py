"""The operator's verbs over what the tiers hold: from a JSON object to a JSON object.

Knows neither sockets nor whether a server runs. A tier that fails is told of in its own row; the others are still done.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from kvist.base.errors import KvistError, TierError
from kvist.base.ids import TENANT_DEFAULT
from kvist.blocks.keys import tenant_tag
from kvist.fabric.messages import TierName
from kvist.fabric.outcome import Outcome
from kvist.server.administration_bodies import (
    LOOK_S,
    CopyBody,
    ExplainBody,
    ListBody,
    PrefetchBody,
    SelectionBody,
    ShowBody,
    TiersBody,
)
from kvist.server.administration_choice import (
    Choice,
    choice_by_hashes,
    choice_of,
    everything_of,
    tag_of,
    tenant_of,
    tokens_of,
)
from kvist.server.administration_ports import KeyOf, Model, Stock
from kvist.server.errors import FAULT, NOT_FOUND, ApiError, shown
from kvist.server.explain import explained
from kvist.server.schemas import validated
from kvist.tiers.ports import Entry

_ALL = 2**31
"""More records than a tier has."""

EXPLAIN_S = 30.0
"""How long an engine that is busy may take to say how a prompt would begin: a step or two."""

Json = dict[str, Any]


Work = Callable[[TierName, Sequence[Entry], float], Outcome]
"""What is done with some records of one tier, in so many seconds at most."""

Carry = Callable[[TierName, TierName, Sequence[Entry], float], Outcome]
"""What is done with some records of one tier and another tier, likewise."""


class _Verb(NamedTuple):
    body: type[BaseModel]
    do: Callable[[Any], Json]


class Verbs:
    """Carries out what an operator asks for. May be called from several threads at once."""

    def __init__(self, stock: Stock, key_of: KeyOf | None, model: Model | None) -> None:
        """Works on a stock.

        Args:
            stock: what the tiers hold.
            key_of: makes tenants' keys; None: nobody knows the secret, and tenants cannot be named.
            model: reads prompts; None where no server runs.
        """
        self._stock = stock
        self._key_of = key_of
        self._model = model
        self._reading = threading.Lock()
        self._default_tag = None if key_of is None else tenant_tag(key_of(TENANT_DEFAULT))
        self._verbs = {
            "tiers": _Verb(TiersBody, self._tiers),
            "list": _Verb(ListBody, self._list),
            "show": _Verb(ShowBody, self._show),
            "explain": _Verb(ExplainBody, self._explain),
            "pin": _Verb(SelectionBody, self._pin),
            "unpin": _Verb(SelectionBody, self._unpin),
            "purge": _Verb(SelectionBody, self._purge),
            "verify": _Verb(SelectionBody, self._verify),
            "copy": _Verb(CopyBody, self._copy),
            "move": _Verb(CopyBody, self._move),
            "prefetch": _Verb(PrefetchBody, self._prefetch),
        }

    def do(self, name: str, given: Json) -> Json:
        """Does a verb by its name; what it answers can be written as JSON.

        Raises:
            ApiError: it cannot be done.
        """
        verb = self._verbs.get(name)
        if verb is None:
            message = f"{shown(name)} is not a verb; there are {', '.join(self._verbs)}."
            raise ApiError(message, family=NOT_FOUND, code="not_found")
        return verb.do(validated(verb.body, given))

    # ---- looking

    def _tiers(self, _body: TiersBody) -> Json:
        return {"tiers": [asdict(books) for books in self._stock.tiers()]}

    def _list(self, body: ListBody) -> Json:
        tag, left = tag_of(body, self._key_of), body.limit
        choice = everything_of(tag)
        blocks: list[Json] = []
        errors: list[Json] = []
        for tier in self._chosen_tiers(body.tier):
            try:
                # One more than is shown tells whether there are more.
                found = self._stock.entries(tier, tag, left + 1, LOOK_S, choice.includes)
            except TierError as error:
                errors.append({"tier": tier, "error": str(error)})
                continue
            blocks += [self._block(tier, entry) for entry in found]
            left -= len(found)
            if left < 0:
                break
        return {"blocks": blocks[: body.limit], "more": len(blocks) > body.limit, "errors": errors}

    def _show(self, body: ShowBody) -> Json:
        choice = choice_by_hashes([body.hash], tag_of(body, self._key_of))
        copies, errors = self._gathered(choice, None)
        if not any(copies.values()) and not errors:
            raise ApiError(f"No tier has a block {body.hash!r}.", family=NOT_FOUND, param="hash", code="not_found")
        blocks = [self._block(tier, entry) for tier, entries in copies.items() for entry in entries]
        return {"blocks": blocks, "more": False, "errors": errors}

    def _explain(self, body: ExplainBody) -> Json:
        if self._model is None or self._model.explain is None:
            raise ApiError("Only a server whose engine can be asked explains prompts.", code="no_model")
        with self._reading:
            tokens = tokens_of(body, self._model)
        try:
            found = self._model.explain(tokens, tenant_of(body) or TENANT_DEFAULT, EXPLAIN_S)
        except TimeoutError as error:
            message = f"The engine did not answer within {EXPLAIN_S:g} s."
            raise ApiError(message, family=FAULT, code="engine_failed") from error
        except KvistError as error:
            raise ApiError(f"The engine did not answer: {error}", family=FAULT, code="engine_failed") from error
        about = explained(found.sources, found.decision)
        return {"tokens": len(tokens), **about, "prefix_end": found.prefix_end}

    # ---- changing

    def _pin(self, body: SelectionBody) -> Json:
        return self._each(body, partial(self._stock.pin, pinned=True))

    def _unpin(self, body: SelectionBody) -> Json:
        return self._each(body, partial(self._stock.pin, pinned=False))

    def _verify(self, body: SelectionBody) -> Json:
        return self._each(body, self._stock.verify)

    def _purge(self, body: SelectionBody) -> Json:
        choice = self._choice(body)
        if not choice.is_all_of_tenant:
            return self._each(body, self._stock.remove)
        rows = []
        for tier in reversed(self._chosen_tiers(body.tier)):  # what is loaded meanwhile is copied to faster ones
            purge = partial(self._stock.purge, tier, choice.tenant, body.timeout_s)
            rows.append({"tier": tier, **_counted(purge)})
        return {"tiers": rows[::-1], "unknown": []}

    def _copy(self, body: CopyBody) -> Json:
        return self._carried(body, self._stock.copy)

    def _move(self, body: CopyBody) -> Json:
        return self._carried(body, self._stock.move)

    def _prefetch(self, body: PrefetchBody) -> Json:
        (target,) = self._chosen_tiers(body.target)
        sources = self._chosen_tiers(body.tier)
        choice = self._choice(body)
        copies, rows = self._gathered(choice, None)
        there = {entry.address.key for entry in copies.get(target, ())}
        for source in sources if target in copies else ():
            found = [entry for entry in copies.get(source, ()) if entry.address.key not in there]
            if not found:
                continue
            row = _counted(partial(self._stock.copy, source, target, found, body.timeout_s))
            if row.get("done") == len(found):
                there.update(entry.address.key for entry in found)
            rows.append({"from": source, "to": target, "chosen": len(found), **row})
        return {"tiers": rows, "unknown": choice.unknown()}

    # ---- steps

    def _each(self, body: SelectionBody, work: Work) -> Json:
        """Works on what is chosen, tier by tier, once all is known: a selection may turn out to mean nothing."""
        choice = self._choice(body)
        copies, rows = self._gathered(choice, body.tier)
        for tier, found in copies.items():
            done = _counted(partial(work, tier, found, body.timeout_s))
            rows.append({"tier": tier, "chosen": len(found), **done})
        return {"tiers": rows, "unknown": choice.unknown()}

    def _carried(self, body: CopyBody, work: Carry) -> Json:
        """Works on what is chosen in the source."""
        if body.source == body.target:
            message = f"'source' and 'target' are both {shown(body.source)}; name two tiers."
            raise ApiError(message, param="target", code="invalid_value")
        if body.tier is not None:
            raise ApiError("'tier' means nothing here; 'source' says where from.", param="tier", code="invalid_value")
        (target,) = self._chosen_tiers(body.target)
        choice = self._choice(body)
        copies, rows = self._gathered(choice, body.source)
        for source, found in copies.items():
            row = _counted(partial(work, source, target, found, body.timeout_s))
            rows.append({"from": source, "to": target, "chosen": len(found), **row})
        return {"tiers": rows, "unknown": choice.unknown()}

    def _choice(self, body: SelectionBody) -> Choice:
        with self._reading:
            return choice_of(body, self._key_of, self._model)

    def _gathered(self, choice: Choice, tier: str | None) -> tuple[dict[TierName, list[Entry]], list[Json]]:
        """What is chosen, by tier, and which tiers could not be asked.

        Raises:
            ApiError: a shortened hash means several blocks.
        """
        copies: dict[TierName, list[Entry]] = {}
        errors: list[Json] = []
        for each in self._chosen_tiers(tier):
            try:
                copies[each] = list(self._stock.entries(each, choice.tenant, _ALL, LOOK_S, choice.includes))
            except TierError as error:
                errors.append({"tier": each, "error": str(error)})
        choice.check()
        return copies, errors

    def _chosen_tiers(self, name: str | None) -> list[TierName]:
        names = [books.name for books in self._stock.tiers()]
        if name is None:
            return names
        if name not in names:
            message = f"There is no tier {shown(name)}; there are {', '.join(names)}."
            raise ApiError(message, family=NOT_FOUND, param="tier", code="unknown_tier")
        return [TierName(name)]

    def _block(self, tier: TierName, entry: Entry) -> Json:
        key, is_default = entry.address.key, entry.address.tenant == self._default_tag
        return {
            "hash": key.hash.hex(),
            "tier": tier,
            "group": key.group,
            "namespace": key.namespace.hex(),
            "tenant": entry.address.tenant.hex(),
            "default_tenant": is_default,
            "bytes": entry.record_bytes,
            "created_unix_s": entry.created_unix_s,
            "expires_unix_s": entry.expires_unix_s,
            "pinned": entry.pinned,
        }


def _counted(work: Callable[[], Outcome]) -> Json:
    """What became of the records of one tier, or why it failed."""
    try:
        return asdict(work())
    except TierError as error:
        return {"error": str(error)}
