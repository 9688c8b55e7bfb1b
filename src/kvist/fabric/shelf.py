"""What can be found in one tier, by hash in bulk, and what will have expired when.

Knows rows and the time it is told. A row is on the shelf from its acknowledgement until somebody decides that it goes;
whether it has expired meanwhile is asked with each look-up, because the wall clock may jump either way.
"""

from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush

from kvist.base.ids import BlockHash
from kvist.blocks.keys import TenantTag
from kvist.fabric.rows import Row, Scope
from kvist.tiers.ports import Entry

_STALE_MIN = 64


class Shelf:
    """Rows by scope and hash, and a queue of their expiries."""

    def __init__(self) -> None:
        self._found: dict[Scope, dict[BlockHash, Row]] = {}
        self._expiries: list[tuple[float, int, Row]] = []
        self._added = 0
        self._mortal = 0

    def put(self, row: Row) -> None:
        """Makes a row be found from now on."""
        self._found.setdefault(row.scope, {})[row.key.hash] = row
        if row.expires_unix_s is not None:
            self._mortal += 1
            self._added += 1  # so that rows themselves are never compared
            heappush(self._expiries, (row.expires_unix_s, self._added, row))

    def take(self, row: Row) -> None:
        """Makes a row be found no more."""
        found = self._found[row.scope]
        del found[row.key.hash]
        if not found:
            del self._found[row.scope]
        self._mortal -= row.expires_unix_s is not None
        if len(self._expiries) > 2 * self._mortal + _STALE_MIN:
            self._expiries = [each for each in self._expiries if self._is_here(each[2])]
            heapify(self._expiries)

    def have(self, scope: Scope, hashes: Sequence[BlockHash], now_unix_s: float) -> list[bool]:
        """Whether each hash is here and has not expired, in order."""
        found = self._found.get(scope)
        if found is None:
            return [False] * len(hashes)
        if not self._expiries or self._expiries[0][0] > now_unix_s:  # nothing has expired: at the speed of C
            return list(map(found.__contains__, hashes))
        return [row is not None and row.alive(now_unix_s) for row in map(found.get, hashes)]

    def entries(self, whose: TenantTag | None) -> Iterator[Entry]:
        """Everything that is here, or what is one tenant's; a snapshot, oldest first within a scope."""
        rows = [row for scope, found in self._found.items() if whose in {None, scope[2]} for row in found.values()]
        return iter([row.entry for row in rows if row.entry is not None])

    def expired(self, now_unix_s: float, most: int | None = None) -> list[Row]:
        """The rows that have expired by now, first to last and at most so many; each is told once.

        They stay here until they are taken.
        """
        rows: list[Row] = []
        while self._expiries and self._expiries[0][0] <= now_unix_s and (most is None or len(rows) < most):
            row = heappop(self._expiries)[2]
            if self._is_here(row):
                rows.append(row)
        return rows

    def audit(self, rows: Collection[Row]) -> None:
        """Compares with the rows that should be found.

        Raises:
            AssertionError: naming the first difference.
        """
        found = {row.address.key: row for each in self._found.values() for row in each.values()}
        assert found == {row.key: row for row in rows}, f"{len(found)} rows are found, {len(rows)} should be"
        assert all(self._found[row.scope][row.key.hash] is row for row in rows), "a row is found where it is not"
        queued = {id(row) for _, _, row in self._expiries}
        assert all(id(row) in queued for row in rows if row.expires_unix_s is not None), "a row will never expire"
        mortal = sum(row.expires_unix_s is not None for row in rows)
        assert mortal == self._mortal, f"{mortal} rows expire, not {self._mortal}"
        assert len(queued) <= 2 * mortal + _STALE_MIN + 1, f"{len(queued)} expiries of {mortal} rows are kept"

    def _is_here(self, row: Row) -> bool:
        return self._found.get(row.scope, {}).get(row.key.hash) is row
