"""What a long prompt costs the books of G1: looked up, begun, committed, ended, evicted.

    python bench/micro/prefix_lookup.py --json bench/results/prefix-lookup.json

One tenant's prompt fills the pools of every KV group. It is looked up under hashes that were made anew, as those of a
second request are.
"""

import argparse
import sys
from collections.abc import Sequence

from rounds import Case, parser_of, run

from kvist.base.errors import KvistError
from kvist.base.ids import BlockHash, BlockId, RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.blocks.eviction import CopiesFirst
from kvist.blocks.keys import HashChain, namespace_of, tenant_key
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.blocks.table import BlockTable
from kvist.blocks.window import Marks, Retention

BLOCK_TOKENS = 16
GROUPS = {"full attention": (None,), "full attention and a window of 512": (None, Tokens(512))}


class Lookups:
    """One cache, full of one prompt, and everything that is done to it."""

    def __init__(self, windows: tuple[Tokens | None, ...], blocks: int) -> None:
        self.tokens, self.blocks = blocks * BLOCK_TOKENS + 1, blocks
        pools = [BlockPool(2 * blocks + 1, policy=CopiesFirst()) for _ in windows]
        self.cache = PrefixCache(namespace_of({}), pools, windows, block_tokens=BLOCK_TOKENS)
        self.marks = Marks(prompt_tokens=self.tokens)
        first = self.table("first")
        first.grow(self.tokens)
        first.commit(self.chain("blue"), self.tokens, self.marks)
        first.release()
        self.known, self.unknown = self.chain("blue"), self.chain("green")
        self.wants = {(group, index) for group in range(len(windows)) for index in range(blocks)}
        self.running = self.table("second")

    def table(self, name: str) -> BlockTable:
        return BlockTable(self.cache, RequestId(name), Retention())

    def chain(self, tenant: str) -> list[BlockHash]:
        chain = HashChain(tenant_key(b"", TenantId(tenant)), block_tokens=BLOCK_TOKENS)
        return list(chain.extend_to([*map(TokenId, range(self.tokens))]))

    def rehash(self) -> None:
        self.known = self.chain("blue")

    def match(self) -> None:
        self.cache.match(self.known, tokens=self.tokens)

    def match_nothing(self) -> None:
        self.cache.match(self.unknown, tokens=self.tokens)

    def residency(self) -> None:
        self.cache.residency(self.known, self.blocks)

    def assemble(self) -> None:
        self.cache.assemble(self.unknown, self.wants, tokens=Tokens(self.tokens - 1), end="")

    def take_and_release(self) -> None:
        self.running.take(self.cache.match(self.known, tokens=self.tokens))
        self.running.release()

    def load_and_release(self) -> None:
        hit = self.cache.assemble(self.unknown, self.wants, tokens=Tokens(self.tokens - 1), end="")
        assert hit is not None
        self.running.take(hit)
        self.running.release()


class Evictions:
    """A pool that is full of cached blocks, of which none among the next ones has a copy."""

    def __init__(self, blocks: int) -> None:
        self.count, self.owner = blocks, RequestId("owner")
        self.refill()

    def refill(self) -> None:
        self.pool = BlockPool(self.count, policy=CopiesFirst(), has_copy=set[BlockHash]().__contains__)
        for number in range(self.count):
            block = self.pool.seal(self.pool.allocate(self.owner), self.owner, BlockHash(number.to_bytes(32, "little")))
            self.pool.release(block, self.owner)

    def allocate_all(self) -> list[BlockId]:
        return [self.pool.allocate(self.owner) for _ in range(self.count)]


def cases(args: argparse.Namespace) -> list[Case]:
    found = []
    for name, windows in GROUPS.items():
        lookups = Lookups(windows, args.blocks)
        for verb, call in {
            "match all": lookups.match,
            "match nothing": lookups.match_nothing,
            "residency": lookups.residency,
            "assemble a hit that is all to be loaded": lookups.assemble,
            "match, take and release": lookups.take_and_release,
            "assemble, take and release what never lands": lookups.load_and_release,
        }.items():
            case = Case(name=f"{verb}, {name}", unit="blocks", units=args.blocks, run=call, prepare=lookups.rehash)
            found.append(case)
    full = Evictions(args.blocks)
    name = "evict where nothing has a copy"
    found.append(Case(name=name, unit="blocks", units=args.blocks, run=full.allocate_all, prepare=full.refill))
    return found


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--blocks", type=int, default=8192, help="length of the prompt (%(default)s)")
    run("prefix_lookup", argv, parser, cases)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"prefix_lookup: {error}")
