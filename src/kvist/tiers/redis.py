"""A Redis or Valkey server as a tier that hosts share (G3.5): keyed, verbs of one pipelined round trip each.

Needs Redis 7.0 or any Valkey, and of an ACL user: ``~kvist:* +exists +getrange +set +unlink +persist +pexpireat +scan
+strlen +pexpiretime``, and ``+select`` for a database other than 0.

The server evicts (maxmemory-policy) and expires by itself, by its own clock. A record that does not expire is given an
end in the year 9999, and only a pinned one has none: so the policies volatile-lru and volatile-lfu evict all but pins.

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
    LISTING_BYTES_MAX,
    STAMP_BYTES,
    command,
    entry_of,
    expires_ms,
    is_of_another_type,
    receive_record,
    receive_scan,
    set_commands,
)
from kvist.tiers.redis_settings import RedisSettings
from kvist.tiers.redis_wire import RedisWire, Reply

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
        return [answer == 1 for answer in self._ask([command(b"EXISTS", key) for key in self._keys.encode(addresses)])]

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
                replies = [wire.receive() for _ in sent]
            self._check(replies)
        refused = NotStored(reason=f"longer than the {_VALUE_BYTES_MAX} bytes that a value of Redis may have")
        return [_STORED if is_taken else refused for is_taken in taken]

    def delete(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """See `kvist.tiers.ports.Deleter`; the server frees the memory after it has answered."""
        return [answer == 1 for answer in self._ask([command(b"UNLINK", key) for key in self._keys.encode(addresses)])]

    def keep(self, addresses: Sequence[Address], *, pinned: bool, expires_unix_s: float | None) -> Sequence[bool]:
        """See `kvist.tiers.ports.Keeper`; a record that expires is not pinned, since the server cannot do both."""
        keys = self._keys.encode(addresses)
        if not pinned or expires_unix_s is not None:
            expires = b"%d" % expires_ms(expires_unix_s)
            return [answer == 1 for answer in self._ask([command(b"PEXPIREAT", key, expires) for key in keys])]
        # PERSIST answers 0 both for a record without an end and for none at all.
        commands = [command(verb, key) for key in keys for verb in (b"PERSIST", b"EXISTS")]
        return [answer == 1 for answer in self._ask(commands)[1::2]]

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

    def _replies(self, commands: Sequence[bytes]) -> list[Reply]:
        """Short answers to commands, in order, errors among them; a batch to each round trip."""
        self._connections.check_open()
        replies: list[Reply] = []
        for first in range(0, len(commands), _COMMANDS_MAX):
            batch = commands[first : first + _COMMANDS_MAX]
            packed = b"".join(batch)
            with self._connections.borrow() as wire:
                wire.begin(len(packed))
                wire.send([packed])
                replies += [wire.receive() for _ in batch]
        return replies

    def _ask(self, commands: Sequence[bytes]) -> Sequence[Reply]:
        """Short answers to commands, in order.

        Raises:
            TierError: as well when only one of the answers is an error; the other commands were carried out.
        """
        replies = self._replies(commands)
        self._check(replies)
        return replies

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
            commands = []
            while asked < len(reads):
                size = reads[asked].into.nbytes
                if asked > index and bytes_ahead + size > self._settings.bytes_in_flight:
                    break
                # The last byte that is wanted, counted from 0, is that of a value too long.
                commands.append(command(b"GETRANGE", keys[asked], b"0", b"%d" % (STAMP_BYTES + size)))
                bytes_ahead += size
                asked += 1
            if commands:
                wire.send([b"".join(commands)])
            yield receive_record(wire, read.into)
            bytes_ahead -= read.into.nbytes

    def _list(self, pattern: bytes) -> Iterator[Entry]:
        cursor = b"0"
        seen: set[bytes] = set()  # a scan shows a key twice when the server's table grows meanwhile
        while True:
            with self._connections.borrow() as wire:
                wire.begin(LISTING_BYTES_MAX)
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
        last = b"%d" % (STAMP_BYTES - 1)
        replies = self._replies(
            [
                each
                for key, _ in known
                for each in (
                    command(b"STRLEN", key),
                    command(b"PEXPIRETIME", key),
                    command(b"GETRANGE", key, b"0", last),
                )
            ]
        )
        self._check([reply for reply in replies if not is_of_another_type(reply)])
        for index, (_, address) in enumerate(known):
            entry = entry_of(address, *replies[3 * index : 3 * index + 3])
            if entry is not None:
                yield entry
