"""The parts of a step on a CPU, watched while it is computed: time, calls, and what each needs at least.

Watches lie around the functions that layers are made of, by their names in the modules that call them. What such a
function adds to a program of kernels is remembered, and timed when the program runs: then its kernels run one by one,
each with a call of the threads of its own, which takes a few microseconds that a whole program does not.
"""

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from kvist.engine.backends import torch_backend
from kvist.engine.backends.cpu import kernel, products
from kvist.engine.backends.cpu.few import attend_few
from kvist.engine.backends.cpu.gate import gated
from kvist.engine.backends.cpu.many import ManyRows
from kvist.engine.backends.cpu.normalise import rms_norm
from kvist.engine.backends.cpu.rotate import rotate_and_write
from kvist.engine.backends.cpu.step import CpuStep
from kvist.engine.backends.tiles import AttentionRule
from kvist.engine.batch import Batch

Needs = Callable[..., tuple[int, int]]
"""Bytes and floating-point operations of a call, given its result and what it was called with."""

Name = Callable[..., str]

HOME = "kvist.engine.backends"


@dataclass(slots=True, kw_only=True)
class Part:
    """What one part did in one step; grows with every call."""

    seconds: float = 0.0
    calls: int = 0
    bytes: int = 0
    flops: int = 0

    def add(self, seconds: float, needed: tuple[int, int]) -> None:
        """Counts a call."""
        self.seconds, self.calls = self.seconds + seconds, self.calls + 1
        self.bytes, self.flops = self.bytes + needed[0], self.flops + needed[1]


@dataclass(slots=True, kw_only=True)
class Watch:
    """Lies around the parts for as long as it is installed, and counts while there is a step.

    Attributes:
        kv_heads: of the model.
        step: that is being computed and counted; None: nothing is counted.
        parts: of the steps so far, by name.
        added: what was added to programs, by the address of its arguments: its part, and what it needs.
    """

    kv_heads: int
    step: Batch | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    added: dict[int, tuple[str, Callable[[], tuple[int, int]]]] = field(default_factory=dict)

    def around(self, name: Name, needs: Needs, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched."""

        def watched(*args: Any, program: kernel.Program | None = None, **named: Any) -> Any:
            more = {} if program is None else {"program": program}
            before = 0 if program is None else len(program.table)
            begun_s = time.perf_counter()
            result = function(*args, **named, **more)
            took_s = time.perf_counter() - begun_s
            if program is not None:
                needed = functools.partial(needs, result, *args, **named)
                for index, address in enumerate(program.table[before + 1 :: 2]):
                    self.added[address] = name(*args, **named), needed if index == 0 else _nothing
            elif self.step is not None:
                self._part(name(*args, **named)).add(took_s, needs(result, *args, **named))
            return result

        return watched

    def run(self, function: Callable[..., None]) -> Callable[..., None]:
        """What runs programs, watched: while a step is counted, one kernel at a time."""

        def watched(*programs: kernel.Program) -> None:
            if self.step is None:
                function(*programs)
                return
            for program in programs:
                for address, given in zip(program.table[::2], program.table[1::2], strict=True):
                    begun_s = time.perf_counter()
                    kernel._run(address, given, torch.get_num_threads(), 0)  # noqa: SLF001 - a program of one
                    took_s = time.perf_counter() - begun_s
                    name, needed = self.added.get(given, ("others", _nothing))
                    self._part(name).add(took_s, needed())

        return watched

    def attention(self, _result: object, *args: Any, **_: object) -> tuple[int, int]:
        """K and V that each sequence's rows see, queries and results; scores and sums of what each row sees."""
        assert self.step is not None
        query, rule, out = args[0], args[3], args[4]
        alone, once = seen(self.step, rule)
        width = query.shape[-1] + out.shape[-1]
        read = once * self.kv_heads * width * query.element_size()
        return size_of(query, out) + read, 2 * query.shape[1] * alone * width

    def _part(self, name: str) -> Part:
        return self.parts.setdefault(name, Part())


def seen(step: Batch, rule: AttentionRule) -> tuple[int, int]:
    """Positions that all rows see, each for itself; and that sequences have to read, each once."""
    window = max(step.positions) + 1 if rule.window is None else rule.window
    alone = sum(min(position + 1, window) for position in step.positions)
    spans = zip(step.starts, step.counts, strict=True)
    return alone, sum(min(start + count, window + count - 1) for start, count in spans)


def size_of(*tensors: object) -> int:
    """Bytes of all tensors among what is given."""
    return sum(each.numel() * each.element_size() for each in tensors if isinstance(each, torch.Tensor))


@contextmanager
def installed(watch: Watch) -> Iterator[None]:
    """Puts a watch around every part for the time of a `with`; programs made before are not known to it."""
    named: list[tuple[Callable[..., Any], Name, Needs]] = [
        (products.project, _product_name, _product_needs),
        (rms_norm, _constant("norm"), _pass_needs),
        (rotate_and_write, _constant("rotation, K and V written"), _pass_needs),
        (gated, _constant("activation"), _pass_needs),
        (attend_few, _constant("attention"), watch.attention),
        (torch_backend.draw, _constant("draw"), _nothing),
    ]
    replaced = {function: watch.around(name, needs, function) for function, name, needs in named}
    replaced |= {kernel.run: watch.run(kernel.run)}
    modules = [module for name, module in sys.modules.items() if name.startswith(HOME)]
    kept: list[tuple[Any, str, Any]] = [
        (module, name, value) for module in modules for name, value in vars(module).items() if _in(value, replaced)
    ]
    methods: list[tuple[type, str, str, Needs]] = [
        (CpuStep, "__init__", "plan of who reads what", _nothing),
        (ManyRows, "attend", "attention", lambda result, _self, *args: watch.attention(result, *args)),
    ]
    try:
        for module, name, function in kept:
            setattr(module, name, replaced[function])
        for owner, name, part, needs in methods:
            kept.append((owner, name, getattr(owner, name)))
            setattr(owner, name, watch.around(_constant(part), needs, getattr(owner, name)))
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def _in(value: object, functions: dict[Callable[..., Any], Callable[..., Any]]) -> bool:
    return callable(value) and any(value is each for each in functions)


def _constant(name: str) -> Name:
    return lambda *_, **__: name


def _nothing(*_: object, **__: object) -> tuple[int, int]:
    return 0, 0


def _product_name(_x: object, weight: torch.Tensor, *_: object, **__: object) -> str:
    return f"product {weight.shape[1]:,} -> {weight.shape[0]:,}"


def _product_needs(
    result: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *_: object, **__: object
) -> tuple[int, int]:
    """Weights, rows in, rows out; a multiplication and an addition for each weight and row."""
    return size_of(x, weight, result), 2 * x.shape[0] * weight.numel()


def _pass_needs(result: object, x: torch.Tensor, *_: object, **__: object) -> tuple[int, int]:
    """What is read, and what is made of it."""
    return size_of(x, result), 0
