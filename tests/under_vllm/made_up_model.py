"""A model that is made up: the KV of a token stands for all tokens before it, so that it shows whose KV it is.

    value of a position = hash(value of the one before, token, group, era)

An era ends when the weights are replaced. Every position that a step attends to is looked at before it is computed.
"""

import torch

from fakes.dice import Dice
from kvist.connectors.vllm.reading import Foreign
from under_vllm.scheduler_cases import BLOCK_TOKENS, CELL, Case

_MARK = 0x55
"""Tells the second number of a token from the first."""

_VOCABULARY = 50


class Model:
    """Computes what vLLM has scheduled, in the memory of every worker.

    Attributes:
        kv: of each worker, [blocks, heads, block_tokens, content]; all groups take their blocks from it.
        era: of the weights.
        is_mixed: whether vLLM may go on with KV of an era before: then it is not looked at.
        guesses: of tokens that come next, by request.
        attended: positions that were looked at.
    """

    def __init__(self, case: Case, workers: int, dice: Dice) -> None:
        self.kv = tuple(torch.zeros(case.blocks, 1, BLOCK_TOKENS, CELL) for _ in range(workers))
        self.era = 0
        self.is_mixed = False
        self.guesses: dict[str, list[int]] = {}
        self.attended = 0
        self._case = case
        self._dice = dice
        self._tokens: dict[str, list[int]] = {}
        self._tables: dict[str, list[list[int]]] = {}

    def run(self, output: Foreign) -> list[list[int]]:
        """Computes a step; the tokens that come out, of each request in its order."""
        starts = self._told(output)
        guessed = output.scheduled_spec_decode_tokens
        return [
            self._computed(name, starts[name], count, guessed.get(name, []))
            for name, count in output.num_scheduled_tokens.items()
        ]

    def _told(self, output: Foreign) -> dict[str, int]:
        """Takes in what is new of requests; from which token on each is computed."""
        starts: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            self._tokens[new.req_id] = list(new.prompt_token_ids)
            self._tables[new.req_id] = [list(blocks) for blocks in new.block_ids]
            starts[new.req_id] = new.num_computed_tokens
        old = output.scheduled_cached_reqs
        for name, start, blocks in zip(old.req_ids, old.num_computed_tokens, old.new_block_ids, strict=True):
            starts[name] = start
            if name in old.resumed_req_ids:
                self._tokens[name] = list(old.all_token_ids[name])
                self._tables[name] = [list(each) for each in blocks]
            elif blocks is not None:
                for table, each in zip(self._tables[name], blocks, strict=True):
                    table.extend(each)
        return starts

    def _computed(self, name: str, start: int, count: int, guessed: list[int]) -> list[int]:
        known, end = self._tokens[name], start + count
        tokens = known + list(guessed)
        assert end <= len(tokens), f"{name} is to be computed up to {end} of {len(tokens)} tokens"
        values: list[int] = []
        for group in range(len(self._case.windows)):
            self._check(name, group, tokens[:start])
            values = self._filled(name, group, tokens[:end], start)
        if end < len(known):
            return []
        sampled = [values[len(known) - 1 - start] % _VOCABULARY]
        while (place := len(known) + len(sampled) - 1) < end and tokens[place] == sampled[-1]:
            sampled.append(values[place - start] % _VOCABULARY)
        known.extend(sampled)
        if self._case.guesses:
            self.guesses[name] = self._guessed(values[place - 1 - start], sampled[-1])
        return sampled

    def _check(self, name: str, group: int, before: list[int]) -> None:
        """What a step attends to is what was computed of these tokens."""
        if self.is_mixed or not before:
            return
        window = self._case.windows[group]
        first = 0 if window is None else max(0, len(before) - window + 1)
        expected, value = [], 0
        for token in before:
            value = self._value(value, token, group)
            expected.append(value)
        found = self._read(self._places(name, group, first, len(before)))
        self.attended += len(found)
        wrong = [first + place for place, value in enumerate(found) if value != expected[first + place]]
        assert not wrong, f"{name}, group {group}: of {len(before)} positions before, wrong ones are {wrong}"

    def _filled(self, name: str, group: int, tokens: list[int], start: int) -> list[int]:
        """Computes from `start` on, from what is there."""
        value = self._read(self._places(name, group, start - 1, start))[0] if start else 0
        values: list[int] = []
        for token in tokens[start:]:
            value = self._value(value, token, group)
            values.append(value)
        places, both = self._places(name, group, start, len(tokens)), [[value, value ^ _MARK] for value in values]
        for kv in self.kv:
            kv.view(-1, CELL)[places] = torch.tensor(both, dtype=kv.dtype)
        return values

    def _read(self, places: torch.Tensor) -> list[int]:
        """What stands there, of which all workers must have the same."""
        found = [kv.view(-1, CELL)[places].to(torch.int64) for kv in self.kv]
        for each in found:
            assert torch.equal(each, found[0]), "workers do not have the same KV"
        assert torch.equal(found[0][:, 0] ^ _MARK, found[0][:, 1]), "half of a token's KV is another one's"
        return [int(value) for value in found[0][:, 0].tolist()]

    def _places(self, name: str, group: int, first: int, end: int) -> torch.Tensor:
        """Where positions [first, end) of a request lie."""
        table = self._tables[name][group]
        assert all(table[first // BLOCK_TOKENS : -(-end // BLOCK_TOKENS)]), f"{name} attends to what vLLM has given up"
        at = range(first, end)
        return torch.tensor([table[place // BLOCK_TOKENS] * BLOCK_TOKENS + place % BLOCK_TOKENS for place in at])

    def _value(self, before: int, token: int, group: int) -> int:
        return hash((before, token, group, self.era)) & 0x7FFFFF  # so that a float32 takes it whole

    def _guessed(self, value: int, token: int) -> list[int]:
        """Tokens that come next; most of them are right."""
        guessed: list[int] = []
        for _ in range(self._case.guesses):
            value = self._value(value, token, len(self._case.windows) - 1)
            token = value % _VOCABULARY if self._dice.number(1, 10) <= 7 else self._dice.number(0, _VOCABULARY - 1)
            guessed.append(token)
        return guessed
