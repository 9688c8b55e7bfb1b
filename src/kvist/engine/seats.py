"""Where the running sequences sit, and with them their blocks, in the tables that backends read.

A sequence sits from when it begins to run until it leaves; who sits on no seat has no row. Its row follows its block
table: entry by entry as that changes, so that a step in which no block fills touches none.

Law: while a step is computed, the row of every sequence in it is its block table.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import chain

from kvist.base.ids import BlockId, RequestId
from kvist.engine.batch import Batch, DrawSpec, GroupTable, integers
from kvist.engine.schedule import Plan
from kvist.engine.sequence import Sequence

_WIDTH = 64
"""Blocks of a row at first; it is doubled whenever somebody has more."""


class Seats:
    """As many seats as sequences may run.

    Attributes:
        tables: the blocks of every seat, by KV group.
    """

    def __init__(self, seats: int, *, groups: int, block_tokens: int) -> None:
        """All seats are free; the lowest is taken first."""
        self.tables = tuple(GroupTable(seats, _WIDTH) for _ in range(groups))
        self._block_tokens = block_tokens
        self._free = list(range(seats - 1, -1, -1))
        # Of the latest batch, because the next one is mostly of the same sequences.
        self._latest: list[Sequence] = []
        self._request_ids: list[RequestId] = []
        self._column = integers()
        self._certain: list[DrawSpec] | None = None

    def __len__(self) -> int:
        """Free seats."""
        return len(self._free)

    def seat(self, sequence: Sequence) -> None:
        """Gives a sequence a row; what its block table lists is written with its first batch."""
        assert sequence.seat is None, f"{sequence.request.id} sits already"
        sequence.seat = self._free.pop()
        self._latest = []

    def leave(self, sequence: Sequence) -> None:
        """The row may be another's."""
        assert sequence.seat is not None, f"{sequence.request.id} does not sit"
        self._free.append(sequence.seat)
        sequence.seat = None

    def batch(self, plan: Plan) -> Batch:
        """The next tokens of each sequence, as work for a backend; who is planned sits, and has the blocks for it."""
        sequences, counts = plan.sequences, plan.counts
        for sequence in sequences:
            if sequence.table.changed_from is not None:
                self._write(sequence, sequence.table.take_changes())
        if sequences != self._latest:
            self._remember(sequences)
        starts = integers([sequence.computed for sequence in sequences])
        if plan.decodes:
            tokens = integers([sequence.tokens[-1] for sequence in sequences])
            positions = starts
        else:
            spans = [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
            pieces = zip(sequences, spans, strict=True)
            tokens = integers(chain.from_iterable(each.tokens[span.start : span.stop] for each, span in pieces))
            positions = integers(chain.from_iterable(spans))
        draws: Seq[DrawSpec | None]
        if plan.decodes and self._certain is not None:
            draws = self._certain
        else:
            draws = [sequence.draw_after(count) for sequence, count in zip(sequences, counts, strict=True)]
        return Batch(
            request_ids=self._request_ids,
            tokens=tokens,
            positions=positions,
            starts=starts,
            counts=integers(counts),
            seats=self._column,
            draws=draws,
            tables=self.tables,
            block_tokens=self._block_tokens,
        )

    def _remember(self, sequences: list[Sequence]) -> None:
        """Keeps what is the same in every batch of these sequences."""
        self._latest = list(sequences)
        self._request_ids = [sequence.request.id for sequence in sequences]
        self._column = integers([seat for sequence in sequences if (seat := sequence.seat) is not None])
        certain = [sequence.certain for sequence in sequences if sequence.certain is not None]
        self._certain = certain if len(certain) == len(sequences) else None

    def _write(self, sequence: Sequence, runs: Iterable[tuple[int, Seq[BlockId]]]) -> None:
        seat = sequence.seat
        assert seat is not None, f"{sequence.request.id} does not sit"
        for table, first, (index, blocks) in zip(self.tables, sequence.table.firsts, runs, strict=True):
            table.firsts[seat] = first
            table.write(seat, index, blocks)
