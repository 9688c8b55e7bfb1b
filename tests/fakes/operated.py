"""An operator's verbs over small tiers, with a tokenizer of bytes and an engine that explains by rote."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from fakes.stock import POOL, Trial, offline_stock, opened
from fakes.tiers import write_of
from fakes.tokenizer import ByteTokenizer
from kvist.app.administration import STOP_S, administered
from kvist.app.private_socket import operator_listener
from kvist.base.ids import SALTED, TENANT_DEFAULT, GroupId, TenantId, TokenId
from kvist.base.units import Bytes, Tokens
from kvist.blocks.keys import BlockKey, HashChain, Namespace, tenant_key, tenant_tag
from kvist.fabric.messages import Decision, Option, Source
from kvist.server.administration_ports import Explain, Explanation, Model
from kvist.server.administration_verbs import Verbs
from kvist.tiers.ports import Address

KEY_OF = partial(tenant_key, b"a secret of the tests")
NAMESPACE = Namespace(bytes(32))
BLOCK_TOKENS = 4
TEXT = "the words of a prompt that fill some blocks"


def told(found: Explanation) -> Explain:
    """An engine that answers the same to everything."""

    def explain(_tokens: Sequence[TokenId], _tenant: TenantId, _timeout_s: float) -> Explanation:
        return found

    return explain


def some_explanation() -> Explanation:
    """Of a prompt whose first 8 tokens are in the pool."""
    sources = (Source(tier="pool", tokens=Tokens(8), bytes=Bytes(1200)),)
    load = Option(tokens=Tokens(8), sources=sources, load_s=0.001, prefill_s=0.002)
    compute = Option(tokens=Tokens(0), sources=(), load_s=0.0, prefill_s=0.02)
    decision = Decision(chosen=load, options=(compute, load), reason="loading [bold]pool[/] takes 1 ms")
    return Explanation(sources=sources, decision=decision, prefix_end="nothing more is stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Verbs, and the tiers that they work on."""

    verbs: Verbs
    trial: Trial

    def store(self, text: str, salt: str | None = None, namespace: Namespace = NAMESPACE) -> list[str]:
        """Puts the blocks of a prompt into the pool, as a server would; their hashes, first to last."""
        key = KEY_OF(tenant_of(salt))
        chain = HashChain(key, block_tokens=BLOCK_TOKENS).extend_to(ByteTokenizer().encode(text))
        addresses = [
            Address(key=BlockKey(namespace, GroupId(0), "prefix", each), tenant=tenant_tag(key)) for each in chain
        ]
        self.trial.pool.write([write_of(address) for address in addresses])
        return [each.hex() for each in chain]

    def hashes(self, tier: str = POOL) -> list[str]:
        """What a tier has."""
        return sorted(entry.address.key.hash.hex() for entry in self.trial.entries(tier))


def tenant_of(salt: str | None) -> TenantId:
    """The tenant of requests with a salt, or without."""
    return TENANT_DEFAULT if salt is None else TenantId(SALTED + salt)


@contextmanager
def operator(
    make: Callable[..., object] = offline_stock, explain: Explain | None = None, *, knows_model: bool = True
) -> Iterator[Operator]:
    """Verbs over fresh tiers."""
    model = Model(
        open_tokenizer=ByteTokenizer,
        namespace=NAMESPACE,
        block_tokens=BLOCK_TOKENS,
        tokens_max=1000,
        explain=explain or told(some_explanation()),
    )
    with opened(make) as trial:
        yield Operator(verbs=Verbs(trial.stock, KEY_OF, model if knows_model else None), trial=trial)


@contextmanager
def served(app: ASGIApp, port: int, environment: Mapping[str, str], stop_s: int = STOP_S) -> Iterator[Path]:
    """The app where the server of a port is looked for, as a server puts it there."""
    with operator_listener(environment, port) as (path, listener), administered(app, listener, stop_s):
        yield path
