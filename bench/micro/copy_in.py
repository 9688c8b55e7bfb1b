"""Blocks from the DRAM tier's memory into G1 and back, against a loop of memcpy over the same blocks.

    python bench/micro/copy_in.py --json bench/results/copy-in.json

Records lie one after the other in shared memory, as the tier keeps them. In G1 a block is scattered over layers and
heads. "One layer" is the same bytes in one run per plane, as where a tier's form is the engine's own. Units are bytes;
figures are processor time of one core, so that checking is not hidden behind other cores.
"""

import argparse
import mmap
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
from rounds import Case, parser_of, run

from kvist.base.errors import KvistError
from kvist.base.ids import BlockHash, BlockId, GroupId, TenantId
from kvist.blocks.form import HEADER_BYTES, Header, check_record, stamp_record
from kvist.blocks.keys import BlockKey, namespace_of, tenant_key, tenant_tag
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.form import form_of
from kvist.geometry.groups import KvGroup

BLOCK_TOKENS = 16
ALIGNMENT = 64
GROUPS = {
    "over 30 layers and 3 heads": KvGroup(layers=tuple(range(30)), kv_heads=3, head_dim_k=64, head_dim_v=64),
    "one layer": KvGroup(layers=(0,), kv_heads=1, head_dim_k=90 * 64, head_dim_v=90 * 64),
}
TENANT = tenant_tag(tenant_key(b"", TenantId("blue")))


class Bench:
    """One group's tensors, and stamped records in memory of a tier."""

    def __init__(self, group: KvGroup, blocks: int, count: int, seed: int) -> None:
        torch.set_num_threads(1)
        self.form = form_of(group, "bfloat16", BLOCK_TOKENS)
        self.bytes = self.form.payload_bytes * count
        self.store = KvStore(
            [group], [blocks], block_tokens=BLOCK_TOKENS, dtype=torch.bfloat16, device=torch.device("cpu")
        )
        step = -(-self.form.record_bytes // ALIGNMENT) * ALIGNMENT
        slab = memoryview(mmap.mmap(-1, step * count))
        dice = np.random.default_rng(seed)
        slab[:] = dice.bytes(len(slab))
        self.records = [slab[step * index : step * index + self.form.record_bytes] for index in range(count)]
        self.keys = [
            BlockKey(namespace_of({}), GroupId(0), "prefix", BlockHash(index.to_bytes(32, "little")))
            for index in range(count)
        ]
        for key, record in zip(self.keys, self.records, strict=True):
            header = Header(
                key=key,
                tenant=TENANT,
                form=self.form,
                first_position=0,
                tokens_valid=BLOCK_TOKENS,
                created_unix_s=0.0,
            )
            stamp_record(record, header)
        self.payloads = [record[HEADER_BYTES:] for record in self.records]
        self.ascending = list(map(BlockId, range(count)))
        self.scattered = list(map(BlockId, dice.permutation(blocks)[:count].tolist()))
        self.mixed = dice.permutation(count).tolist()
        self.plain = np.frombuffer(mmap.mmap(-1, self.bytes), dtype=np.uint8).reshape(count, -1)
        self.plain[:] = 0

    def memcpy(self) -> None:
        for target, payload in zip(self.plain, self.payloads, strict=True):
            np.copyto(target, np.frombuffer(payload, dtype=np.uint8))

    def check(self) -> None:
        for key, record in zip(self.keys, self.records, strict=True):
            check_record(record, key=key, tenant=TENANT, form=self.form)

    def copy(self, verb: Callable[..., None], blocks: Sequence[BlockId], payloads: Sequence[memoryview]) -> None:
        for first in range(0, len(blocks), 16):
            verb(0, blocks[first : first + 16], payloads[first : first + 16])

    def cases(self, name: str) -> list[Case]:
        copy_in, copy_out = self.store.copy_in, self.store.copy_out
        anywhere = [self.payloads[index] for index in self.mixed]
        runs = {
            "memcpy": self.memcpy,
            "copy in, ascending": lambda: self.copy(copy_in, self.ascending, self.payloads),
            "copy in, to anywhere": lambda: self.copy(copy_in, self.scattered, self.payloads),
            "copy in, from and to anywhere": lambda: self.copy(copy_in, self.scattered, anywhere),
            "check": self.check,
            "copy out, from anywhere": lambda: self.copy(copy_out, self.scattered, self.plain_views),
        }
        return [Case(name=f"{verb}, {name}", unit="bytes", units=self.bytes, run=call) for verb, call in runs.items()]

    @property
    def plain_views(self) -> list[memoryview]:
        return [memoryview(row) for row in self.plain]


def cases(args: argparse.Namespace) -> list[Case]:
    found = []
    for name, group in GROUPS.items():
        found += Bench(group, args.pool, args.blocks, args.seed).cases(name)
    return found


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--blocks", type=int, default=256, help="blocks of a prompt (%(default)s)")
    parser.add_argument("--pool", type=int, default=1024, help="blocks of the pool (%(default)s)")
    run("copy_in", argv, parser, cases)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"copy_in: {error}")
