"""How fast prompts are hashed, against the digests alone.

    python bench/micro/hash_chain.py --json bench/results/hash-chain.json

The floor is a loop of keyed BLAKE3 calls from Python over bytes of the same lengths, without chaining or packing.
"""

import argparse
import sys
from collections.abc import Sequence

from blake3 import blake3
from rounds import Case, parser_of, run

from kvist.base.errors import KvistError
from kvist.base.ids import TenantId, TokenId
from kvist.blocks.keys import HashChain, tenant_key
from kvist.lab.draw import Span, integers

KEY = tenant_key(b"secret", TenantId("bench"))
ENCODED_BYTES_MORE = 70
"""What a block's fields take besides its tokens: the hash before it, tags and lengths."""


def cases(args: argparse.Namespace) -> list[Case]:
    found = []
    for block_tokens in args.block_tokens:
        prompt = [*map(TokenId, integers(args.seed, "prompt", args.tokens, Span(low=0, high=150_000)))]
        blocks = args.tokens // block_tokens

        def whole(prompt: list[TokenId] = prompt, size: int = block_tokens) -> None:
            HashChain(KEY, block_tokens=size).extend_to(prompt)

        def digests(count: int = blocks, data: bytes = bytes(ENCODED_BYTES_MORE + 4 * block_tokens)) -> None:
            keyed = blake3(key=KEY)
            for _ in range(count):
                keyed.copy().update(data).digest()

        def one_by_one(prompt: list[TokenId] = prompt, size: int = block_tokens) -> None:
            chain, tokens = HashChain(KEY, block_tokens=size), list[TokenId]()
            for token in prompt:
                tokens.append(token)
                chain.extend_to(tokens)

        of = f"blocks of {block_tokens}"
        found += [
            Case(name=f"a whole prompt, {of}", unit="tokens", units=args.tokens, run=whole),
            Case(name=f"the digests alone, {of}", unit="tokens", units=args.tokens, run=digests),
            Case(name=f"grown token by token, {of}", unit="tokens", units=args.tokens, run=one_by_one),
        ]
    return found


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=131_072, help="length of the prompt (%(default)s)")
    parser.add_argument("--block-tokens", type=int, nargs="+", default=[16], help="sizes of a block to try (16)")
    run("hash_chain", argv, parser, cases)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"hash_chain: {error}")
