"""Engines over the real models: the parts that `kvist serve` puts together, stepped by the test and not by a thread."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from kvist.app.clock import SystemClock
from kvist.app.engine import read_geometry
from kvist.app.locate import ModelFiles, locate
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.blocks.keys import namespace_of
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.engine.backends.device import open_device, torch_dtype
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.loading import load_model
from kvist.engine.backends.torch_backend import TorchBackend
from kvist.engine.batch import Batch
from kvist.engine.core import EngineCore
from kvist.engine.messages import Admitted, EngineLimits, Event, Finished, TokenDrawn
from kvist.engine.request import Request, Sampling
from kvist.engine.settings import EngineSettings
from kvist.geometry.groups import Dtype, ModelGeometry
from kvist.planner.budget import KvLimits, plan_kv

TENANT = TenantId("tests")
SEQUENCES_MAX = 32
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A real model in memory, ready for any number of engines."""

    files: ModelFiles
    geometry: ModelGeometry
    dtype: Dtype
    model: PreTrainedModel


def load_weights(name: str, dtype: Dtype) -> Weights:
    """Loads a fetched model; one that is not fetched is an error that says how to fetch it."""
    files = locate(name)
    geometry = read_geometry(files.directory)
    model = load_model(files.directory, geometry, dtype=torch_dtype(dtype), device=open_device("cpu"))
    return Weights(files=files, geometry=geometry, dtype=dtype, model=model)


def blocks_for(weights: Weights, kv_bytes: int, *, tokens_max: int, step_tokens: int) -> tuple[int, ...]:
    """How the planner divides so many bytes among the model's KV groups, in blocks."""
    limits = KvLimits(
        dtype=weights.dtype,
        block_tokens=BLOCK_TOKENS,
        step_tokens=step_tokens,
        sequences_max=SEQUENCES_MAX,
        model_tokens_max=Tokens(tokens_max),
        window_checkpoint_tokens=Tokens(4096),
    )
    return plan_kv(weights.geometry, kv_bytes, limits).blocks


class RecordingBackend(TorchBackend):
    """The real backend, which also remembers the shape of each batch and the logits it is told to keep.

    Attributes:
        batches: tokens of each chunk, batch by batch.
        kept: logits by request and index of the output token that was drawn from them, [vocab].
    """

    def __init__(self, model: PreTrainedModel, store: KvStore, keep: frozenset[int]) -> None:
        """Keeps the logits of the output tokens with these indices."""
        super().__init__(model, store)
        self.batches: list[list[int]] = []
        self.kept: dict[tuple[RequestId, int], torch.Tensor] = {}
        self._keep = keep
        self._drawn: dict[RequestId, int] = {}

    def logits(self, batch: Batch) -> torch.Tensor:
        logits = super().logits(batch)
        self.batches.append([len(chunk.tokens) for chunk in batch])
        for row, chunk in enumerate(chunk for chunk in batch if chunk.draw is not None):
            index = self._drawn.get(chunk.request_id, 0)
            self._drawn[chunk.request_id] = index + 1
            if index in self._keep:
                self.kept[chunk.request_id, index] = logits[row].clone()
        return logits


@dataclass(slots=True, kw_only=True)
class Answer:
    """What came back for one request, as it came.

    Attributes:
        draws: one per output token.
        admitted, finished: the events around them.
        submitted_s, first_token_s: by the engine's clock.
    """

    submitted_s: float
    draws: list[TokenDrawn] = field(default_factory=list)
    admitted: Admitted | None = None
    finished: Finished | None = None
    first_token_s: float = 0.0

    @property
    def tokens(self) -> list[TokenId]:
        """The output."""
        return [draw.token for draw in self.draws]

    @property
    def tokens_cached(self) -> int:
        """Prompt tokens that came from the cache."""
        assert self.admitted is not None, "never admitted"
        return self.admitted.tokens_cached

    @property
    def ttft_s(self) -> float:
        """From the submission to the first token."""
        return self.first_token_s - self.submitted_s

    def take(self, event: Event, now_s: float) -> None:
        match event:
            case Admitted():
                self.admitted = event
            case TokenDrawn():
                self.first_token_s = self.first_token_s or now_s
                self.draws.append(event)
            case Finished():
                self.finished = event
            case _:
                raise AssertionError(f"ended by {event}")


class RealEngine:
    """One engine: its core, and all that a test wants to look into."""

    def __init__(
        self, weights: Weights, blocks: Sequence[int], *, tokens_max: int, step_tokens: int, keep: Iterable[int] = ()
    ) -> None:
        """Allocates the KV pool.

        Args:
            weights: of the model.
            blocks: of each KV group; `blocks_for` knows how many make sense.
            tokens_max: longest prompt plus output.
            step_tokens: most tokens in one step.
            keep: indices of the output tokens whose logits are kept.
        """
        geometry, dtype = weights.geometry, torch_dtype(weights.dtype)
        self.store = KvStore(geometry.groups, blocks, block_tokens=BLOCK_TOKENS, dtype=dtype, device=open_device("cpu"))
        self.cache = PrefixCache(
            namespace_of({"model": weights.files.served_name, "dtype": weights.dtype}),
            [BlockPool(count) for count in blocks],
            [group.window for group in geometry.groups],
            block_tokens=BLOCK_TOKENS,
        )
        self.backend = RecordingBackend(weights.model, self.store, frozenset(keep))
        settings = EngineSettings(
            groups=geometry.groups,
            kv_bytes=self.store.nbytes,
            kv_bytes_per_token=geometry.bytes_per_token(weights.dtype),
            block_tokens=BLOCK_TOKENS,
            step_tokens=step_tokens,
            sequences_max=SEQUENCES_MAX,
        )
        self.core = EngineCore(self.backend, self.cache, settings, secret=bytes(32))
        self._limits = EngineLimits(
            model_tokens_max=Tokens(tokens_max),
            prompt_tokens_max=Tokens(tokens_max - 1),
            output_tokens_max=Tokens(tokens_max - 1),
            longest_request_tokens=Tokens(tokens_max),
            sequences_max=SEQUENCES_MAX,
            waiting_max=1000,
            vocab_size=geometry.vocab_size,
        )
        self._clock = SystemClock()

    def submit(self, request: Request) -> Answer:
        """Queues a request; its answer fills as the engine is stepped."""
        answer = Answer(submitted_s=self._clock.now_s())
        self.core.submit(request, self._limits, lambda event: answer.take(event, self._clock.now_s()))
        return answer

    def run(self, after_step: Callable[[], None] = lambda: None) -> None:
        """Steps until nobody waits or runs, with the ledger checked after every step."""
        while self.core.has_work:
            self.core.step()
            self.core.audit()
            after_step()

    def answer(self, requests: Sequence[Request]) -> dict[RequestId, Answer]:
        """Submits requests together and carries them out."""
        answers = {request.id: self.submit(request) for request in requests}
        self.run()
        return answers


def greedy(name: str, prompt: Sequence[int], tokens: int, *, logprobs: int | None = None) -> Request:
    """A request for exactly so many of the most likely tokens, whatever they are."""
    return Request(
        id=RequestId(name),
        tenant=TENANT,
        prompt=tuple(map(TokenId, prompt)),
        output_tokens_max=Tokens(tokens),
        sampling=Sampling(temperature=0, logprobs=logprobs),
        stop_tokens=frozenset(),
    )
