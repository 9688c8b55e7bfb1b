"""One request in progress: its tokens, how far their KV is computed, and the blocks it holds.

Knows how a request advances; does not know when (`schedule`), whether (`admission`) or how (`backend`).
"""

from collections.abc import Iterable
from typing import NamedTuple

from kvist.base.ids import BlockHash, TokenId
from kvist.base.units import Tokens
from kvist.blocks.keys import HashChain, TenantKey, TenantTag, tenant_tag
from kvist.blocks.prefix import Hit, PrefixCache
from kvist.blocks.table import BlockTable, Kept
from kvist.blocks.window import Marks
from kvist.engine.batch import Drawn, DrawSpec
from kvist.engine.draw import uniforms
from kvist.engine.messages import Finished, FinishReason
from kvist.engine.request import Request
from kvist.engine.settings import EngineSettings

_NUMBERS = 32
"""So many numbers for draws are made at once."""


class Work(NamedTuple):
    """What computing some tokens comes to: new prompt tokens, tokens computed once before, blocks filled, and kept."""

    prompt: int
    again: int
    blocks: int
    kept: list[Kept]


class Sequence:
    """Mutable state of one request; owned by the engine.

    Attributes:
        tokens: prompt and output so far.
        computed: how many of them have their KV in the blocks of `table`.
        certain: how every token is drawn, where nothing is left to chance; else None.
        quiet_below: a token that ends below here is output, computed for the first time, and fills no block.
        tokens_cached: prompt tokens that came from the cache and were never computed for this request.
        tokens_output: output tokens drawn.
        preemptions: how often the blocks were taken away.
        turn: place in the order of admission; the largest is preempted first.
        awaited: the block that somebody else is computing and this sequence waits for, or None.
        asked: whether the tiers below were asked about it since it last ran.
        seat: where its blocks are written for backends while it runs, else None.
        has_run: whether it ran before, perhaps without computing anything.
    """

    def __init__(self, request: Request, chain: HashChain, table: BlockTable, tenant: TenantTag) -> None:
        """Starts at the first token of the prompt, waiting."""
        self.request = request
        self.chain = chain
        self.table = table
        self.tenant = tenant
        self.tokens: list[TokenId] = list(request.prompt)
        self.marks = Marks(prompt_tokens=len(request.prompt))
        self.computed = 0
        self.quiet_below = 0
        self._ever = 0
        self._numbered, self._numbers = range(0), list[float]()
        self.certain = None if request.sampling.temperature else DrawSpec(request.sampling, 0.0)
        self.tokens_cached = 0
        self.tokens_output = 0
        self.preemptions = 0
        self.turn = 0
        self.awaited: BlockHash | None = None
        self.asked = False
        self.seat: int | None = None
        self.has_run = False

    @property
    def length(self) -> Tokens:
        """Tokens so far."""
        return Tokens(len(self.tokens))

    @property
    def computed_ever(self) -> int:
        """The largest value `computed` had; what is computed below it is recomputation."""
        return max(self._ever, self.computed)

    @property
    def remaining(self) -> int:
        """Tokens whose KV is still to be computed; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def tokens_bound(self) -> int:
        """The longest this sequence can become, the last token's KV not needed."""
        return len(self.request.prompt) + self.request.output_tokens_max - 1

    def take(self, hit: Hit, turn: int) -> None:
        """Holds the blocks that it will begin from, some of which may still have to land.

        Raises:
            CapacityError: there are too few blocks for those; nothing is held.
        """
        self.table.take(hit)
        self.turn = turn

    def begin(self, hit: Hit) -> range:
        """Begins to run from what it took, all of which is there now; returns the tokens that are counted as cached."""
        ever, self.computed = self.computed_ever, hit.tokens
        self.marks = Marks(
            prompt_tokens=len(self.request.prompt),
            branches=tuple({hit.tokens, hit.reached, *self.marks.branches} - {0}),
        )
        fresh = range(ever, max(ever, min(hit.tokens, len(self.request.prompt))))
        self.tokens_cached += len(fresh)
        return fresh

    def stop(self) -> list[Kept]:
        """Gives all blocks back, keeping in the cache what a continuation would need; returns what is newly kept."""
        self._ever, self.quiet_below = self.computed_ever, 0
        kept = self.table.keep_window()
        self.table.release()
        self.computed = 0
        return kept

    def draw_after(self, count: int) -> DrawSpec | None:
        """How to draw the token after the next `count`; None when those are not the last."""
        if self.computed + count < len(self.tokens):
            return None
        if self.certain is not None:
            return self.certain
        if self.tokens_output not in self._numbered:
            self._numbered = range(self.tokens_output, self.tokens_output + _NUMBERS)
            self._numbers = uniforms(self.request.sampling.seed, self.tokens_output, _NUMBERS)
        return DrawSpec(self.request.sampling, self._numbers[self.tokens_output - self._numbered.start])

    def advance(self, count: int, block_tokens: int) -> Work:
        """Records that `count` tokens were computed, and seals the blocks they filled."""
        start, prompt, ever = self.computed, self.marks.prompt_tokens, self.computed_ever
        self.computed = end = start + count
        full = end // block_tokens
        self.quiet_below = (full + 1) * block_tokens if end >= prompt and end >= ever else 0
        kept = self.table.commit(self.chain.extend_to(self.tokens), end, self.marks)
        blocks = full - start // block_tokens
        if start >= prompt and start == ever:
            return Work(0, 0, blocks, kept)
        return Work(
            prompt=max(0, min(end, prompt) - max(ever, start)),
            again=max(0, min(ever, end) - start),
            blocks=blocks,
            kept=kept,
        )

    def append(self, drawn: Drawn) -> FinishReason | None:
        """Takes a drawn token; returns why the request ends with it, or None."""
        token, request = drawn.token, self.request
        self.tokens.append(token)
        self.tokens_output = output = self.tokens_output + 1
        if token in request.stop_tokens:
            return "stop"
        return "length" if output == request.output_tokens_max else None

    def finished(self, reason: FinishReason) -> Finished:
        """Its last event when it ends now."""
        return Finished(
            request_id=self.request.id,
            reason=reason,
            tokens_prompt=Tokens(len(self.request.prompt)),
            tokens_cached=Tokens(self.tokens_cached),
            tokens_output=Tokens(self.tokens_output),
            preemptions=self.preemptions,
        )


def sequence_of(request: Request, cache: PrefixCache, settings: EngineSettings, key: TenantKey) -> Sequence:
    """A sequence at its first token.

    Args:
        request: whose it is.
        cache: where its blocks will be.
        settings: of the engine.
        key: the tenant's.
    """
    chain = HashChain(key, block_tokens=settings.block_tokens)
    return Sequence(request, chain, BlockTable(cache, request.id, settings.retention), tenant_tag(key))


def advance_each(computed: Iterable[tuple[Sequence, int]], block_tokens: int) -> list[tuple[Sequence, Work]]:
    """Records that each sequence computed so many tokens; returns what that came to where it was not just output.

    What most sequences do in most steps, one more token of output within a block, takes a comparison here.
    """
    works = []
    for sequence, count in computed:
        end = sequence.computed + count
        if end < sequence.quiet_below:
            sequence.computed = end
        else:
            works.append((sequence, sequence.advance(count, block_tokens)))
    return works
