"""A Redis or Valkey server as a tier that hosts share (G3.5): keyed, verbs of one pipelined round trip each.

Needs Redis 7.0 or any Valkey, and of an ACL user: ``~kvist:* +exists +getrange +set +unlink +persist +pexpireat +scan
+strlen +pexpiretime``, and ``+select`` for a database other than 0.

The server evicts (maxmemory-policy) and expires by itself, by its own clock. A record that does not expire is given an
end in the year 9999, and only a pinned one has none: so the policies volatile-lru and volatile-lfu evict all but pins.
A write that timed out may still arrive when the server goes on.

Laws:
    * A record is fetched with its length as the bound: a longer value is seen, and never received.
    * Each call ends within the settings' time-outs and what its bytes need at 16 MiB/s.
"""

from collections.abc import Iterator, Sequence

from redis.exceptions import ResponseError

from kvist.base.clock import Clock
from kvist.blocks.keys import TenantTag
from kvist.tiers.ports import (
    Address,
    Entry,
    NotStored,
    Read,
    ReadOutcome,
    Stored,
    TierStatistics,
    Write,
    WriteOutcome,
)
from kvist.tiers.redis_connections import RedisConnections
from kvist.tiers.redis_errors import tier_error
from kvist.tiers.redis_keys import RedisKeys
from kvist.tiers.redis_records import (
    STAMP_BYTES,
    command,
    commands,
    entry_of,
    expires_ms,
    is_of_another_type,
    receive_done,
    receive_record,
    receive_scan,
    set_commands,
)
from kvist.tiers.redis_settings import RedisSettings
from kvist.tiers.redis_wire import RedisWire

_VALUE_BYTES_MAX = 512 * 2**20
_COMMANDS_MAX = 8192  # of one round trip
_LISTED_PER_ROUND = 512

_STORED = Stored()


class RedisTier:
    """Records in a Redis or Valkey server. All verbs may be called from several threads.

    Opens connections as they are needed, at most `RedisSettings.connections_max`; one that broke is replaced by the
    next call. Every failure of client, network or server is a `TierError`.
    """

    def __init__(self, name: str, settings: RedisSettings, clock: Clock) -> None:
        """Asks nothing of the server yet.

        Args:
            name: what configuration and metrics call it.
            settings: which server, and how to use it.
            clock: for time-outs.
        """
        self._name = name
        self._settings = settings
        self._keys = RedisKeys(settings.prefix)
        self._connections = RedisConnections(name, settings, clock)

    @property
    def name(self) -> str:
        """What configuration and metrics call it."""
        return self._name

    def find(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """See `kvist.tiers.ports.Finder`; one round trip for each 8,192 records."""
        return self._ask(commands(b"EXISTS", self._keys.encode(addresses)))

    def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        """See `kvist.tiers.ports.Reader`; records land in their buffers without another copy."""
        self._connections.check_open()
        if not reads:
            return []
        with self._connections.borrow() as wire:
            wire.begin(sum(read.into.nbytes for read in reads))
            outcomes = list(self._receive_records(wire, reads))
        self._check(outcomes)
        return [outcome for outcome in outcomes if not isinstance(outcome, ResponseError)]

    def write(self, writes: Sequence[Write]) -> Sequence[WriteOutcome]:
        """See `kvist.tiers.ports.Writer`; `Stored` means that the server has it, not that its disk has.

        Raises:
            TierFullError: the server is at its maxmemory and evicts nothing; some records may be stored.
        """
        self._connections.check_open()
        taken = [write.record.nbytes + STAMP_BYTES <= _VALUE_BYTES_MAX for write in writes]
        sent = [write for write, is_taken in zip(writes, taken, strict=True) if is_taken]
        if sent:
            pieces = set_commands(self._keys.encode([write.address for write in sent]), sent)
            with self._connections.borrow() as wire:
                wire.begin(sum(map(len, pieces)))
                wire.send(pieces)
                replies = [receive_done(wire) for _ in sent]
            self._check(replies)
        refused = NotStored(reason=f"longer than the {_VALUE_BYTES_MAX} bytes that a value of Redis may have")
        return [_STORED if is_taken else refused for is_taken in taken]

    def delete(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """See `kvist.tiers.ports.Deleter`; the server frees the memory after it has answered."""
        return self._ask(commands(b"UNLINK", self._keys.encode(addresses)))

    def keep(self, addresses: Sequence[Address], *, pinned: bool, expires_unix_s: float | None) -> Sequence[bool]:
        """See `kvist.tiers.ports.Keeper`; a record that expires is not pinned, since the server cannot do both."""
        keys = self._keys.encode(addresses)
        if not pinned or expires_unix_s is not None:
            expires = b"%d" % expires_ms(expires_unix_s)
            return self._ask(commands(b"PEXPIREAT", keys, expires))
        # PERSIST answers 0 both for a record without an end and for none at all.
        both = zip(commands(b"PERSIST", keys), commands(b"EXISTS", keys), strict=True)
        return self._ask([each for pair in both for each in pair])[1::2]

    def entries(self, tenant: TenantTag | None = None) -> Iterator[Entry]:
        """See `kvist.tiers.ports.Lister`; in no order, since the server knows none, and a few hundred at a time.

        What is under a key of ours and is no record (another type, too short) is not listed.
        """
        self._connections.check_open()  # now, and not when the first entry is asked for
        return self._list(self._keys.pattern(tenant))

    def statistics(self) -> TierStatistics:
        """Nothing: how much the store holds, only the store knows."""
        return TierStatistics()

    def close(self) -> None:
        """Ends all use, also by those who wait for the server now; may be repeated."""
        self._connections.close()

    def _ask(self, asked: Sequence[bytes]) -> list[bool]:
        """Whether each command answers 1, in order; a batch to each round trip.

        Raises:
            TierError: as well when only one of the answers is an error; the other commands were carried out.
        """
        self._connections.check_open()
        answers: list[bool] = []
        for first in range(0, len(asked), _COMMANDS_MAX):
            batch = asked[first : first + _COMMANDS_MAX]
            packed = b"".join(batch)
            with self._connections.borrow() as wire:
                wire.begin(len(packed))
                wire.send([packed])
                replies = wire.receive_integers(len(batch))
            self._check(replies)
            answers += [reply == 1 for reply in replies]
        return answers

    def _check(self, answers: Sequence[object]) -> None:
        """Raises when one of the answers is an error."""
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise tier_error(answer, tier=self._name, server=str(self._settings.server)) from answer

    def _receive_records(self, wire: RedisWire, reads: Sequence[Read]) -> Iterator[ReadOutcome | ResponseError]:
        """Asks for records ahead of receiving them, so many bytes at a time that the server need not hold more."""
        keys = self._keys.encode([read.address for read in reads])
        asked = bytes_ahead = 0
        for index, read in enumerate(reads):
            sent = []
            while asked < len(reads):
                size = reads[asked].into.nbytes
                if asked > index and bytes_ahead + size > self._settings.bytes_in_flight:
                    break
                # The last byte that is wanted, counted from 0, is that of a value too long.
                sent.append(command(b"GETRANGE", keys[asked], b"0", b"%d" % (STAMP_BYTES + size)))
                bytes_ahead += size
                asked += 1
            if sent:
                wire.send([b"".join(sent)])
            yield receive_record(wire, read.into)
            bytes_ahead -= read.into.nbytes

    def _list(self, pattern: bytes) -> Iterator[Entry]:
        cursor = b"0"
        seen: set[bytes] = set()  # a scan shows a key twice when the server's table grows meanwhile
        while True:
            with self._connections.borrow() as wire:
                wire.begin(0)
                wire.send([command(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % _LISTED_PER_ROUND)])
                cursor, keys = receive_scan(wire)
            fresh = list(dict.fromkeys(key for key in keys if key not in seen))
            seen.update(fresh)
            yield from self._entries(fresh)
            if cursor == b"0":
                return

    def _entries(self, keys: Sequence[bytes]) -> Iterator[Entry]:
        """What is known of those keys that name records; some may have gone meanwhile."""
        known = [(key, address) for key, address in zip(keys, map(self._keys.decode, keys), strict=True) if address]
        if not known:
            return
        last = b"%d" % (STAMP_BYTES - 1)
        names = [key for key, _ in known]
        facts = (commands(b"STRLEN", names), commands(b"PEXPIRETIME", names), commands(b"GETRANGE", names, b"0", last))
        packed = b"".join(each for of_one in zip(*facts, strict=True) for each in of_one)
        with self._connections.borrow() as wire:
            wire.begin(len(packed))
            wire.send([packed])
            replies = [wire.receive() for _ in range(3 * len(known))]
        self._check([reply for reply in replies if not is_of_another_type(reply)])
        for index, (_, address) in enumerate(known):
            entry = entry_of(address, *replies[3 * index : 3 * index + 3])
            if entry is not None:
                yield entry
