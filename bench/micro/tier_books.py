"""What the books of a placed tier cost: asked for a long prompt, filled, evicting, read, and emptied for another class.

    python bench/micro/tier_books.py --json bench/results/tier-books.json

One tier with room for four prompts. Hashes are made anew for each question, as those of a second request are.
"""

import argparse
import sys
from collections.abc import Sequence

from rounds import Case, parser_of, run

from kvist.base.errors import KvistError
from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.fabric.book import Book
from kvist.fabric.claims import BookLimits, Claim, Refused
from kvist.fabric.messages import Ticket

NAMESPACE, GROUP, TENANT = Namespace(bytes(32)), GroupId(0), TenantTag(bytes(16))
OWNER = Ticket(1)
ALIGNMENT = 4096
RECORD_BYTES = 49_664  # 16 tokens of the 3 full-attention layers of Gemma 3 270M, with the header
EXTENT_PLACES = 1024
PROMPTS = 4
LIFE_S = 3600.0


class Books:
    """The books of one tier, and everything that is done to them."""

    def __init__(self, blocks: int, *, life_s: float | None = None, quota: bool = False) -> None:
        self.blocks, self.life_s, self.quota, self.next = blocks, life_s, quota, 0
        self.empty()

    def empty(self) -> None:
        place = -(-RECORD_BYTES // ALIGNMENT) * ALIGNMENT
        extents = -(-PROMPTS * self.blocks // EXTENT_PLACES)
        size = extents * EXTENT_PLACES * place
        limits = BookLimits(
            bytes_max=size,
            extent_bytes=EXTENT_PLACES * place,
            alignment=ALIGNMENT,
            tenant_bytes_default=size if self.quota else None,
        )
        self.book, self.room = Book(limits), extents * EXTENT_PLACES

    def fill(self) -> None:
        self.empty()
        self.store_all(self.fresh(self.room))

    def fresh(self, count: int) -> list[BlockKey]:
        self.next += count
        numbers = range(self.next - count, self.next)
        return [BlockKey(NAMESPACE, GROUP, "prefix", BlockHash(number.to_bytes(32, "little"))) for number in numbers]

    def ready(self) -> None:
        self.keys = self.fresh(self.blocks)

    def ready_empty(self) -> None:
        self.empty()
        self.ready()

    def ready_questions(self) -> None:
        """The newest blocks, under hashes that nobody has compared yet."""
        self.asked = [BlockHash(number.to_bytes(32, "little")) for number in range(self.next - self.blocks, self.next)]

    def store_all(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            claim = Claim(key=key, tenant=TENANT, record_bytes=RECORD_BYTES, expires_unix_s=self.life_s)
            assert not isinstance(self.book.reserve(claim, OWNER, 0.0), Refused)
            self.book.commit(key, OWNER, 0.0)

    def store(self) -> None:
        self.store_all(self.keys)

    def ask(self) -> list[bool]:
        return self.book.have(NAMESPACE, GROUP, self.asked, TENANT, 0.0)

    def ask_late(self) -> list[bool]:
        return self.book.have(NAMESPACE, GROUP, self.asked, TENANT, 2 * LIFE_S)

    def read(self) -> None:
        for block in self.asked:
            key = BlockKey(NAMESPACE, GROUP, "prefix", block)
            assert self.book.find(key, 0.0) is not None
            self.book.hold(key, OWNER)
        for block in reversed(self.asked):
            self.book.release(BlockKey(NAMESPACE, GROUP, "prefix", block), OWNER)

    def change_class(self) -> None:
        """A record of another length, for which a whole extent goes."""
        (key,) = self.fresh(1)
        answer = self.book.reserve(Claim(key=key, tenant=TENANT, record_bytes=2 * RECORD_BYTES), OWNER, 0.0)
        assert not isinstance(answer, Refused)
        assert len(answer.evicted) == EXTENT_PLACES

    def purge(self) -> None:
        self.book.purge(TENANT)


def cases(args: argparse.Namespace) -> list[Case]:
    blocks = args.blocks
    plain, mortal, bounded, other = (
        Books(blocks),
        Books(blocks, life_s=LIFE_S),
        Books(blocks, quota=True),
        Books(blocks),
    )
    for each in (plain, mortal, bounded):
        each.fill()
    found = [
        Case(name="have, none expires", unit="blocks", units=blocks, run=plain.ask, prepare=plain.ready_questions),
        Case(
            name="have, all expired", unit="blocks", units=blocks, run=mortal.ask_late, prepare=mortal.ready_questions
        ),
        Case(name="find, hold and release", unit="blocks", units=blocks, run=plain.read, prepare=plain.ready_questions),
        Case(name="reserve and commit, empty", unit="blocks", units=blocks, run=other.store, prepare=other.ready_empty),
        Case(name="reserve and commit, evicting", unit="blocks", units=blocks, run=plain.store, prepare=plain.ready),
        Case(name="the same, expiring", unit="blocks", units=blocks, run=mortal.store, prepare=mortal.ready),
        Case(name="the same, at a quota", unit="blocks", units=blocks, run=bounded.store, prepare=bounded.ready),
    ]
    emptied = Books(blocks)
    name = "one extent changes its class"
    found.append(Case(name=name, unit="records", units=EXTENT_PLACES, run=emptied.change_class, prepare=emptied.fill))
    purged = Books(blocks)
    found.append(Case(name="purge", unit="records", units=purged.room, run=purged.purge, prepare=purged.fill))
    return found


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--blocks", type=int, default=8192, help="length of the prompt (%(default)s)")
    run("tier_books", argv, parser, cases)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"tier_books: {error}")
