"""A real engine over a tiny model, driven one step at a time, which keeps the logits behind every token it drew."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import torch
from transformers import PreTrainedModel

import kept_kernels
from kvist.base.ids import BlockHash, BlockId, RequestId, TenantId, TokenId
from kvist.base.units import Bytes, Tokens
from kvist.blocks.keys import namespace_of
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.engine.backends import attention
from kvist.engine.backends.cpu.layer import fuse
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.torch_backend import LayOut, TorchBackend, by_kernels, by_torch
from kvist.engine.batch import Batch, Chunk
from kvist.engine.below import Below
from kvist.engine.core import EngineCore
from kvist.engine.messages import Admitted, EngineLimits, Event, Finished, TokenDrawn
from kvist.engine.request import Request, Sampling
from kvist.engine.settings import EngineSettings
from kvist.geometry.config import geometry_from_config
from kvist.geometry.groups import KvGroup, ModelGeometry
from kvist.planner.budget import blocks_held_peak
from tiny_models import tiny_configs, tiny_model

kept_kernels.keep()

CPU = torch.device("cpu")


@contextmanager
def one_thread() -> Iterator[None]:
    """Models this small are computed fastest by one thread; two wait for each other, long if the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A tiny model as Kvist serves it, and the same weights as transformers runs them.

    Attributes:
        lay_out: what the served model's steps attend by.
    """

    served: PreTrainedModel
    lay_out: Callable[[KvStore], LayOut]
    plain: PreTrainedModel
    geometry: ModelGeometry
    dtype: torch.dtype


@cache
def subject(name: str, dtype: torch.dtype = torch.float32, *, kernels: bool = True) -> Subject:
    """The tiny model of this name, made once; transformers' own attention is the one written out in full.

    Args:
        name: of the variant.
        dtype: of its weights.
        kernels: whether it is served as on a CPU, by kernels and with layers fused, or as everywhere else.
    """
    attention.register()
    # Of a configuration each: a model's attention is written in it.
    served, plain = (tiny_model(tiny_configs()[name], dtype=dtype) for _ in range(2))
    served.set_attn_implementation(attention.IMPLEMENTATION)
    plain.set_attn_implementation("eager")
    # Nothing ends a text early, and no token is ever forbidden for fear that it might.
    plain.generation_config.eos_token_id = None
    geometry = geometry_from_config(served.config.to_dict())
    if kernels:
        assert fuse(served, {layer: group.window for group in geometry.groups for layer in group.layers})
    lay_out = by_kernels if kernels else by_torch
    return Subject(served=served, lay_out=lay_out, plain=plain, geometry=geometry, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an engine is made of; `blocks` of each KV group."""

    blocks: int = 96
    block_tokens: int = 16
    step_tokens: int = 1024
    sequences_max: int = 8
    overcommit: float = 1.0

    def holds(self, groups: Sequence[KvGroup], tokens: int) -> bool:
        """Whether a sequence of this length fits alone."""
        peaks = (
            blocks_held_peak(group, tokens, step_tokens=self.step_tokens, block_tokens=self.block_tokens)
            for group in groups
        )
        return max(peaks) <= self.blocks


class RecordingBackend(TorchBackend):
    """Keeps what each request's draws were made from, and every batch.

    Attributes:
        batches: in the order of steps.
        rows: by request, the logits [vocab] of each draw.
        watch: does each computation of logits, the only thing that writes into blocks, and may look before and after.
    """

    def __init__(self, model: PreTrainedModel, store: KvStore, lay_out: LayOut) -> None:
        super().__init__(model, store, lay_out)
        self.batches: list[tuple[Chunk, ...]] = []
        self.rows: dict[RequestId, list[torch.Tensor]] = defaultdict(list)
        self.watch: Callable[[Callable[[], torch.Tensor]], torch.Tensor] = lambda compute: compute()

    def logits(self, batch: Batch) -> torch.Tensor:
        logits = self.watch(partial(super().logits, batch))
        self.batches.append(tuple(batch))
        drawing = [chunk for chunk in batch if chunk.draw is not None]
        for chunk, row in zip(drawing, logits, strict=True):
            self.rows[chunk.request_id].append(row.float().clone())
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request got: its tokens, and for each the logits [vocab] that it was drawn from."""

    tokens: list[int]
    logits: list[torch.Tensor]
    tokens_cached: int = 0
    preemptions: int = 0


class TinyEngine:
    """One engine; submit, then run. The books are checked after every step.

    With tiers below, `wait` lets these go on when the engine can do nothing else.
    """

    def __init__(
        self,
        subject: Subject,
        shape: Shape = Shape(),
        below: Below | None = None,
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        groups = subject.geometry.groups
        self.subject = subject
        self.shape = shape
        self.store = KvStore(
            groups, [shape.blocks] * len(groups), block_tokens=shape.block_tokens, dtype=subject.dtype, device=CPU
        )
        self.pools = [BlockPool(shape.blocks) for _ in groups]
        windows = [group.window for group in groups]
        cache = PrefixCache(namespace_of({}), self.pools, windows, block_tokens=shape.block_tokens)
        self.backend = RecordingBackend(subject.served, self.store, subject.lay_out(self.store))
        self.core = EngineCore(self.backend, cache, _settings(shape, groups), secret=bytes(32), below=below)
        self._wait = wait
        self.events: dict[RequestId, list[Event]] = defaultdict(list)

    @property
    def limits(self) -> EngineLimits:
        """Bounds as wide as the model allows; the tests ask for nothing that can not fit."""
        most = self.subject.geometry.positions_max
        return EngineLimits(
            model_tokens_max=most,
            prompt_tokens_max=Tokens(most - 1),
            output_tokens_max=Tokens(most - 1),
            longest_request_tokens=most,
            sequences_max=self.shape.sequences_max,
            waiting_max=1000,
            vocab_size=self.subject.geometry.vocab_size,
        )

    def submit(self, name: str, prompt: Sequence[int], output: int, *, tenant: str = "blue") -> None:
        """Asks for the most likely continuation of a prompt."""
        request = Request(
            id=RequestId(name),
            tenant=TenantId(tenant),
            prompt=tuple(map(TokenId, prompt)),
            output_tokens_max=Tokens(output),
            sampling=Sampling(temperature=0),
            stop_tokens=frozenset(),
        )
        self.core.submit(request, self.limits, self.events[request.id].append)

    def step(self) -> None:
        """One step, after which the books balance."""
        is_useful = self.core.step()
        self.core.audit()
        if not is_useful:
            self._wait()

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self.core.has_work:
            self.step()

    def answer(self, name: str) -> Answer:
        """What a request got so far."""
        events = self.events[RequestId(name)]
        return Answer(
            tokens=[event.token for event in events if isinstance(event, TokenDrawn)],
            logits=self.backend.rows[RequestId(name)],
            tokens_cached=sum(event.tokens_cached for event in events if isinstance(event, Admitted)),
            preemptions=sum(event.preemptions for event in events if isinstance(event, Finished)),
        )

    def sealed(self) -> dict[tuple[int, BlockId, BlockHash], torch.Tensor]:
        """A copy of every block that is sealed, by group, block and hash."""
        return {
            (group, block, block_hash): self.store.read_block(group, block)
            for group, pool in enumerate(self.pools)
            for block in map(BlockId, range(len(pool)))
            if (block_hash := pool.hash(block)) is not None
        }


def ask(engine: TinyEngine, name: str, prompt: Sequence[int], output: int, *, tenant: str = "blue") -> Answer:
    """Submits one request, runs it to its end and returns what it got."""
    engine.submit(name, prompt, output, tenant=tenant)
    engine.run()
    return engine.answer(name)


def generate(subject: Subject, prompts: Sequence[Sequence[int]], output: int) -> list[Answer]:
    """What transformers' own greedy `generate` answers to prompts of one length, together."""
    ids = torch.tensor(prompts)
    found = subject.plain.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=output,
        min_new_tokens=output,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    texts = found.sequences[:, ids.shape[1] :].tolist()
    return [Answer(tokens=texts[row], logits=[step[row] for step in found.logits]) for row in range(len(prompts))]


def compare(found: Answer, expected: Answer, what: object, *, within: float = 1e-3, tie: float = 2e-3) -> int:
    """Fails unless two answers agree; returns how many tokens were compared.

    Logits may differ by `within`, tokens only where the two best logits are closer than `tie`; what follows such
    a token continues another text and is not compared.
    """
    assert len(found.tokens) == len(expected.tokens) == len(found.logits), f"{what}: {found} against {expected}"
    for index, (token, wanted) in enumerate(zip(found.tokens, expected.tokens, strict=True)):
        off = (found.logits[index] - expected.logits[index]).abs().max().item()
        assert off <= within, f"{what}: logits of token {index} are off by {off}"
        if token != wanted:
            best, second = expected.logits[index].topk(2).values.tolist()
            assert best - second < tie, f"{what}: token {index} is {token}, not {wanted}, though {best} and {second}"
            return index
    return len(found.tokens)


def _settings(shape: Shape, groups: tuple[KvGroup, ...]) -> EngineSettings:
    return EngineSettings(
        groups=groups,
        kv_bytes=Bytes(0),
        kv_bytes_per_token=Bytes(0),
        block_tokens=shape.block_tokens,
        step_tokens=shape.step_tokens,
        sequences_max=shape.sequences_max,
        overcommit=shape.overcommit,
    )
