"""What tests ask of a tier, whichever it is: each question with the answers that are right."""

from collections.abc import Callable

from fakes.tiers import read_of, write_of
from kvist.tiers.ports import Absent, Address, Entry, Found, Lender, Stored, Tier, Write


def store(tier: Tier, *writes: Write) -> None:
    """Stores records, all of which must be taken."""
    outcomes = tier.write(writes)
    assert list(outcomes) == [Stored()] * len(writes), outcomes


def expect_found(tier: Tier, *writes: Write) -> None:
    """Each record can be found and is what was written, to the byte."""
    assert list(tier.find([each.address for each in writes])) == [True] * len(writes)
    reads = [read_of(each.address, each.record.nbytes) for each in writes]
    assert list(tier.read(reads)) == [Found()] * len(writes)
    for read, write in zip(reads, writes, strict=True):
        assert read.into == write.record, f"{read.address} holds something else"


def expect_absent(tier: Tier, *addresses: Address) -> None:
    """None of the records can be found."""
    assert list(tier.find(addresses)) == [False] * len(addresses)
    assert list(tier.read([read_of(address) for address in addresses])) == [Absent()] * len(addresses)


def entry_of(tier: Tier, address: Address) -> Entry:
    """What the tier says of one record, once."""
    (entry,) = [entry for entry in tier.entries() if entry.address == address]
    return entry


def calls(tier: Tier, address: Address) -> dict[str, Callable[[], object]]:
    """A call of each verb."""
    found: dict[str, Callable[[], object]] = {
        "find": lambda: tier.find([address]),
        "read": lambda: tier.read([read_of(address)]),
        "write": lambda: tier.write([write_of(address)]),
        "delete": lambda: tier.delete([address]),
        "keep": lambda: tier.keep([address], pinned=True, expires_unix_s=None),
        "entries": lambda: list(tier.entries()),
    }
    if isinstance(tier, Lender):
        lender: Lender = tier
        found["lend"] = lambda: lender.lend([address])
    return found
