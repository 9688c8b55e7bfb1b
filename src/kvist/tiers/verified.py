"""Nothing wrong leaves a tier: every record that is read is proven to be the one asked for, and intact.

Laws:
    * `Found` comes with the header of a record whose key, tenant, form, length and checksums are right.
    * A record is stored only under the address that its header names; anything else is our own mistake.
"""

from collections.abc import Iterator, Sequence

from kvist.blocks.form import Form, FormError, check_record, read_header
from kvist.blocks.keys import TenantTag
from kvist.tiers.ports import (
    Address,
    Damaged,
    Entry,
    Found,
    Lender,
    Read,
    ReadOutcome,
    Tier,
    TierStatistics,
    Write,
    WriteOutcome,
)


def examine(record: memoryview, address: Address, form: Form | None) -> ReadOutcome:
    """Whether bytes are the record of an address, no more and no fewer.

    Args:
        record: what a tier gave.
        address: what was asked for.
        form: what it must look like; None where the asker does not know.
    """
    try:
        return Found(header=check_record(record, key=address.key, tenant=address.tenant, form=form))
    except FormError as error:
        return Damaged(reason=str(error))


def examine_lent(place: memoryview, address: Address, form: Form | None) -> ReadOutcome:
    """Whether a lent place begins with the record of its address; what lies behind the record is not looked at.

    Args:
        place: as `kvist.tiers.ports.Lender.lend` gave it.
        address: what was asked for.
        form: what it must look like; None where the asker does not know.
    """
    try:
        size = (form or read_header(place).form).record_bytes
    except FormError as error:
        return Damaged(reason=str(error))
    return examine(place[:size], address, form)


def verified(tier: Tier) -> "Verified":
    """The tier with its reads proven; one that lends still lends."""
    return VerifiedLender(tier, tier) if isinstance(tier, Lender) else Verified(tier)


class Verified:
    """A tier whose records are proven before they are handed on; reads and writes apart, it is the tier within."""

    def __init__(self, tier: Tier) -> None:
        """Wraps a tier, which must not be used directly any more."""
        self._tier = tier

    @property
    def name(self) -> str:
        """The name of the tier within."""
        return self._tier.name

    def find(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """As the tier within; a record that is found may still turn out to be damaged."""
        return self._tier.find(addresses)

    def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        """As the tier within, but what is no intact record of its address and form is `Damaged`."""
        outcomes = self._tier.read(reads)
        return [
            examine(read.into, read.address, read.form) if isinstance(outcome, Found) else outcome
            for read, outcome in zip(reads, outcomes, strict=True)
        ]

    def write(self, writes: Sequence[Write]) -> Sequence[WriteOutcome]:
        """As the tier within; the headers are looked at, the payloads are not."""
        for write in writes:
            _check_header(write)
        return self._tier.write(writes)

    def delete(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """As the tier within."""
        return self._tier.delete(addresses)

    def keep(self, addresses: Sequence[Address], *, pinned: bool, expires_unix_s: float | None) -> Sequence[bool]:
        """As the tier within."""
        return self._tier.keep(addresses, pinned=pinned, expires_unix_s=expires_unix_s)

    def entries(self, tenant: TenantTag | None = None) -> Iterator[Entry]:
        """As the tier within: what it says it has, not proven."""
        return self._tier.entries(tenant)

    def statistics(self) -> TierStatistics:
        """Of the tier within."""
        return self._tier.statistics()

    def close(self) -> None:
        """Closes the tier within."""
        self._tier.close()


class VerifiedLender(Verified):
    """A verified tier that lends."""

    def __init__(self, tier: Tier, lender: Lender) -> None:
        """Wraps a tier and what lends its records, usually itself."""
        super().__init__(tier)
        self._lender = lender

    def lend(self, addresses: Sequence[Address]) -> Sequence[memoryview]:
        """As the tier within: nothing is proven yet. Who looks calls `examine_lent` first."""
        return self._lender.lend(addresses)


def _check_header(write: Write) -> None:
    try:
        header = read_header(write.record)
    except FormError as error:
        raise AssertionError(f"{write.address} would hold no record: {error}") from error
    named = (header.key, header.tenant, header.form.record_bytes)
    right = (write.address.key, write.address.tenant, write.record.nbytes)
    assert named == right, f"a record of {named} would be stored as {right}"
