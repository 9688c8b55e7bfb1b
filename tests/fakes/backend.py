"""A backend of plain lists, which keeps what a real one keeps and checks what a real one has to trust.

Each (KV group, block, offset) holds one number in the place of one token's keys and values: the digest of the
tenant and of all tokens up to there, as real KV depends on all tokens up to there. `MemoryBackend.run` writes the
numbers of each chunk, then reads each chunk's whole visible context through its block runs and compares it with the
sequence's true tokens. So a block that was given away, overwritten, let go too early or swapped for another is
caught by whoever reads it. The next token is a function of the context that was read and of the number that decides
the draw, so that `answer_alone` can say what each request must answer, without blocks or steps.
"""

import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockId, RequestId, TenantId, TokenId
from kvist.engine.backend import BackendError
from kvist.engine.batch import Batch, Chunk, Drawn
from kvist.engine.draw import uniform
from kvist.engine.request import Request

TORN = -1
"""What a failed run leaves where it was going to write."""


def digest_of_nothing(tenant: TenantId) -> int:
    """The digest before a tenant's first token."""
    return zlib.crc32(tenant.encode())


def digest_after(digest: int, token: int) -> int:
    """The digest one token later; tuples of numbers hash alike in every process."""
    return hash((digest, token))


def token_after(digest: int, number: float, vocab: int) -> TokenId:
    """The token that follows a context, given the number in [0, 1) that decides the draw."""
    return TokenId(hash((digest, number)) % vocab)


def answer_alone(request: Request, vocab: int) -> list[TokenId]:
    """What a request answers when nothing else ever happens."""
    digest = digest_of_nothing(request.tenant)
    for token in request.prompt:
        digest = digest_after(digest, token)
    answer: list[TokenId] = []
    while len(answer) < request.output_tokens_max:
        number = uniform(request.sampling.seed, len(answer)) if request.sampling.temperature else 0.0
        answer.append(token_after(digest, number, vocab))
        if answer[-1] in request.stop_tokens:
            break
        digest = digest_after(digest, answer[-1])
    return answer


class Truth:
    """The true tokens of each request, and their digests: what its blocks must contain."""

    def __init__(self) -> None:
        self.tokens: dict[RequestId, list[TokenId]] = {}
        self.digests: dict[RequestId, list[int]] = {}
        self._start: dict[RequestId, int] = {}

    def add(self, request: Request) -> None:
        """Makes a request known, before it is submitted."""
        self.tokens[request.id], self.digests[request.id] = [], []
        self._start[request.id] = digest_of_nothing(request.tenant)
        for token in request.prompt:
            self.append(request.id, token)

    def append(self, request_id: RequestId, token: TokenId) -> None:
        """One more token of a request."""
        digests = self.digests[request_id]
        digests.append(digest_after(digests[-1] if digests else self._start[request_id], token))
        self.tokens[request_id].append(token)


class MemoryBackend:
    """Implements `kvist.engine.backend.Backend`.

    Attributes:
        memory: the pool, [group][block][offset]; None where nothing was ever written.
        fault: raised by the next run instead of computing, after tearing what it was going to write.
        batch_tokens_max: a larger batch is out of memory, each time it is tried; None: no batch is.
        copy_fault: raised by the next copy instead of copying, after tearing what it was going to write.
        runs, runs_failed: calls of `run`, and how many of them raised.
        copied_out, copied_in: blocks.
        computed: how often each request's token at each position was computed.
        spans: (start, tokens) of each chunk computed, by request.
    """

    def __init__(
        self, blocks: Sequence[int], windows: Sequence[int | None], *, block_tokens: int, vocab: int, truth: Truth
    ) -> None:
        self.memory: list[list[list[int | None]]] = [[[None] * block_tokens for _ in range(n)] for n in blocks]
        self.fault: CapacityError | BackendError | None = None
        self.copy_fault: CapacityError | BackendError | None = None
        self.batch_tokens_max: int | None = None
        self.copied_out = self.copied_in = 0
        self.runs = 0
        self.runs_failed = 0
        self.computed: Counter[tuple[RequestId, int]] = Counter()
        self.spans: dict[RequestId, list[tuple[int, int]]] = defaultdict(list)
        self._windows = tuple(windows)
        self._block_tokens = block_tokens
        self._vocab = vocab
        self._truth = truth

    def run(self, batch: Batch) -> list[Drawn | None]:
        """Writes, reads back, compares and draws; see `Backend.run`.

        Raises:
            AssertionError: the batch is not what the engine promises, or a context is not what it should be.
        """
        assert len(batch), "there is nothing to compute"
        self.runs += 1
        chunks = tuple(batch)
        self._check_promises(chunks)
        self._fail_if_told(chunks)
        for chunk in chunks:
            self._write(chunk, self._truth.digests[chunk.request_id][chunk.start : chunk.start + len(chunk.tokens)])
        draws = [self._finish(chunk) for chunk in chunks]
        for chunk in chunks:
            self.spans[chunk.request_id].append((chunk.start, len(chunk.tokens)))
            self.computed.update((chunk.request_id, chunk.start + offset) for offset in range(len(chunk.tokens)))
        return draws

    def copy_out(self, group: int, blocks: Sequence[BlockId], into: Sequence[memoryview]) -> None:
        """The numbers of each block, as eight bytes each; see `Backend.copy_out`."""
        numbers = struct.Struct(f"<{self._block_tokens}q")
        for block, buffer in zip(blocks, into, strict=True):
            assert buffer.nbytes == numbers.size, f"{buffer.nbytes} bytes for a block of {numbers.size}"
            buffer[:] = bytes(numbers.size)
            if self.copy_fault is None:
                numbers.pack_into(buffer, 0, *self.memory[group][block])
        self.copied_out += len(blocks)
        self._fail_copy_if_told()

    def copy_in(self, group: int, blocks: Sequence[BlockId], sources: Sequence[memoryview]) -> None:
        """The reverse of `copy_out`."""
        assert len(set(blocks)) == len(blocks), f"one block twice in {blocks}"
        numbers = struct.Struct(f"<{self._block_tokens}q")
        for block, source in zip(blocks, sources, strict=True):
            assert source.nbytes == numbers.size, f"{source.nbytes} bytes for a block of {numbers.size}"
            torn = [TORN] * self._block_tokens
            self.memory[group][block] = torn if self.copy_fault else list(numbers.unpack(source))
        self.copied_in += len(blocks)
        self._fail_copy_if_told()

    def _fail_copy_if_told(self) -> None:
        fault, self.copy_fault = self.copy_fault, None
        if fault is not None:
            raise fault

    def _check_promises(self, batch: Sequence[Chunk]) -> None:
        """The chunks are of different sequences, in order, in step with the truth, and write where nobody reads."""
        ids = [chunk.request_id for chunk in batch]
        assert len(set(ids)) == len(ids), f"one sequence twice in a batch: {ids}"
        for chunk in batch:
            tokens, end = self._truth.tokens[chunk.request_id], chunk.start + len(chunk.tokens)
            assert chunk.tokens, f"{chunk.request_id} has an empty chunk"
            assert list(chunk.tokens) == tokens[chunk.start : end], f"{chunk.request_id} is at {chunk.start}: {chunk}"
            assert (chunk.draw is not None) == (end == len(tokens)), f"{chunk.request_id} draws in mid-sequence"
        for group in range(len(self._windows)):
            readers = Counter(block for chunk in batch for block in chunk.runs[group].blocks)
            for chunk in batch:
                for position in range(chunk.start, chunk.start + len(chunk.tokens)):
                    block, _ = self._place(chunk, group, position)
                    assert readers[block] == 1, f"{chunk.request_id} writes block {block} that another chunk reads"

    def _place(self, chunk: Chunk, group: int, position: int) -> tuple[int, int]:
        """The block and the offset of a position; a real backend would read out of bounds where this asserts."""
        run = chunk.runs[group]
        index = position // self._block_tokens - run.first
        assert 0 <= index < len(run.blocks), f"{chunk.request_id}: {position} is outside {run} of group {group}"
        return run.blocks[index], position % self._block_tokens

    def _fail_if_told(self, batch: Sequence[Chunk]) -> None:
        tokens = sum(len(chunk.tokens) for chunk in batch)
        fault, self.fault = self.fault, None
        if fault is None and self.batch_tokens_max is not None and tokens > self.batch_tokens_max:
            fault = CapacityError(f"no room for {tokens} tokens at once")
        if fault is not None:
            self.runs_failed += 1
            for chunk in batch:
                self._write(chunk, [TORN] * len(chunk.tokens))
            raise fault

    def _write(self, chunk: Chunk, numbers: list[int]) -> None:
        for group in range(len(self._windows)):
            for position, number in enumerate(numbers, start=chunk.start):
                block, offset = self._place(chunk, group, position)
                self.memory[group][block][offset] = number

    def _finish(self, chunk: Chunk) -> Drawn | None:
        """Reads the visible context, and draws from it where a draw is wanted."""
        end = chunk.start + len(chunk.tokens)
        truth = self._truth.digests[chunk.request_id]
        for group, window in enumerate(self._windows):
            # The first query of the chunk looks furthest back: a window of w sees (position - w, position].
            begin = 0 if window is None else max(0, chunk.start - window + 1)
            for position in range(begin, end):
                block, offset = self._place(chunk, group, position)
                found = self.memory[group][block][offset]
                assert found == truth[position], (
                    f"{chunk.request_id} reads block {block} of group {group} for position {position} and finds "
                    f"{found} instead of {truth[position]}"
                )
        if chunk.draw is None:
            return None
        token = token_after(truth[end - 1], chunk.draw.uniform, self._vocab)
        self._truth.append(chunk.request_id, token)
        return Drawn(token=token)
