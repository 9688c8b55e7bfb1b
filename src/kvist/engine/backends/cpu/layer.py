"""Decoder layers of known kinds with as few passes over memory as there are: in the place of transformers' own.

    rows ─┬─ norm ─ q,k,v ─ norms of heads, rotation, K and V to their places ─ attention ─ output ─ + ─┬─ ...
          └─────────────────────────────────────────────────────────────────────────────────────────────┘
    ... ─┬─ norm ─ gate,up ─ activation(gate) * up ─ down ─ + ─
         └──────────────────────────────────────────────────┘

The graph around them stays transformers', which calls these modules as it called those that were there. Between them
rows go as [rows, hidden], without transformers' batch of one, which would be a view to make in every layer.

With few rows a layer is read from memory in some ten microseconds per projection, and what Python does about each
kernel is as long again. So the kernels of a layer are put together once for each number of rows, and what differs from
step to step (positions, places, who reads which blocks) is written where they look for it. All layers are run in turn
by the last (`kvist.engine.backends.cpu.kernel.run`).
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from kvist.engine.backends.cpu.add import added
from kvist.engine.backends.cpu.gate import gated
from kvist.engine.backends.cpu.kernel import Arena, Program, run
from kvist.engine.backends.cpu.normalise import rms_norm
from kvist.engine.backends.cpu.products import ROWS_FEW, project
from kvist.engine.backends.cpu.rotate import HeadNorms, Rotation, rotate_and_write
from kvist.engine.backends.cpu.step import CpuMemory, CpuStep
from kvist.engine.backends.layers import Activation, Foreign, LayerParts, Norm, layer_parts, parts_of
from kvist.engine.backends.tiles import AttentionRule


def fuse(model: PreTrainedModel, windows: Mapping[int, int | None]) -> bool:
    """Replaces all layers of a known model, its last norm and its head by equal ones; leaves any other as it is.

    The layers' weights are copied, one layer after the other, and those that were there are given up; embedding and
    head stay where they are.

    Args:
        model: on a CPU, in bfloat16 or float32; from then on it computes nothing without a `CpuStep`.
        windows: of each layer, how many positions it looks back, itself included; None means all.

    Returns:
        Whether the model was known.
    """
    parts = parts_of(model)
    if parts is None:
        return False
    decoder: Foreign = parts.decoder
    # A layer's input is what the one before it left in the other arena.
    arenas = Arena(), Arena()
    for index in range(len(decoder.layers)):
        layer = layer_parts(decoder.layers[index])
        assert layer is not None, f"layer {index} was known a moment ago"
        decoder.layers[index] = FusedLayer(
            layer, windows[index], arenas[index % 2], is_last=index + 1 == len(decoder.layers)
        )
    decoder.norm = FusedNorm(parts.norm)
    decoder.rotary_emb = RowRotation(decoder.rotary_emb)
    foreign: Foreign = model
    foreign.set_output_embeddings(FusedHead(parts.head))
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A projection: weight [out, in] and bias [out], if it has one."""

    weight: nn.Parameter
    bias: nn.Parameter | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """What a layer computes with, found without asking a module; as `LayerParts`, with joint projections."""

    index: int
    heads: int
    head_dim: int
    before_attention: Norm
    qkv: Product
    head_norms: HeadNorms | None
    is_rotated: bool
    rule: AttentionRule
    output: Product
    after_attention: Norm | None
    before_mlp: Norm
    gate_up: Product
    activation: Activation
    down: Product
    after_mlp: Norm | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRows:
    """A layer put together for a number of rows; what a step's blocks are in lies where the step before had it.

    Attributes:
        rows: what it reads, [rows, hidden].
        program: all of its kernels.
        found: what it gives, [rows, hidden].
        rotation: the cosines and sines it reads.
        memory: of the steps it serves, if they are still there.
        threads: that it has memory for.
    """

    rows: torch.Tensor
    program: Program
    found: torch.Tensor
    rotation: Rotation | None
    memory: "weakref.ref[CpuMemory]"
    threads: int

    def serves(self, hidden: torch.Tensor, rotation: Rotation | None, step: CpuStep) -> bool:
        """Whether all that the kernels look at is where it was."""
        return (
            self.rotation is rotation
            and self.memory() is step.memory
            and (hidden is self.rows or hidden.dim() == 3)
            and self.threads == torch.get_num_threads()
        )


class FusedLayer(nn.Module):
    """One decoder layer, over weights of its own."""

    def __init__(self, parts: LayerParts, window: int | None, arena: Arena, *, is_last: bool) -> None:
        """Copies the weights.

        Args:
            parts: of the layer.
            window: how many positions it looks back, itself included; None means all.
            arena: memory for what it computes with few rows; another than that of the layers before and after it.
            is_last: whether it is the one that runs what all layers have put together.
        """
        super().__init__()
        self._arena = arena
        self._is_last = is_last
        self._few: dict[int, FewRows] = {}
        self.fused = Fused(
            index=parts.index,
            heads=parts.heads,
            head_dim=parts.head_dim,
            before_attention=_norm(parts.before_attention),
            qkv=_joined(parts.qkv),
            head_norms=_head_norms(parts),
            is_rotated=parts.is_rotated,
            rule=AttentionRule(window=window, scaling=parts.scaling, softcap=parts.softcap),
            output=_joined((parts.output,)),
            after_attention=parts.after_attention and _norm(parts.after_attention),
            before_mlp=_norm(parts.before_mlp),
            gate_up=_joined(parts.gate_up),
            activation=parts.activation,
            down=_joined((parts.down,)),
            after_mlp=parts.after_mlp and _norm(parts.after_mlp),
        )
        for name, weight in _weights(self.fused):
            self.register_parameter(name, weight)

    def forward(
        self, hidden: torch.Tensor, *, position_embeddings: Rotation, kvist: CpuStep, **_: object
    ) -> torch.Tensor:
        """Computes a step's rows; K and V of each are written to their places.

        Args:
            hidden: [rows, hidden]; the first layer gets [1, rows, hidden].
            position_embeddings: cosines and sines, each [rows, rotary_dim].
            kvist: the step.

        Returns:
            [rows, hidden]; with few rows there is nothing in it before the last layer was called.
        """
        fused = self.fused
        rotation = position_embeddings if fused.is_rotated else None
        if hidden.shape[-2] <= ROWS_FEW and kvist.is_few:
            return self._compute_few(hidden, rotation, kvist)
        rows = hidden if hidden.dim() == 2 else hidden[0]
        qkv = _projected(_normed(rows, fused.before_attention), fused.qkv)
        query = rotate_and_write(qkv, rotation, kvist.target(fused.index), norms=fused.head_norms)
        seen = kvist.attend(fused.index, query, fused.rule)
        return self._rest(rows, seen)

    def _compute_few(self, hidden: torch.Tensor, rotation: Rotation | None, step: CpuStep) -> torch.Tensor:
        few = self._few.get(hidden.shape[-2])
        if few is None or not few.serves(hidden, rotation, step):
            few = self._few[hidden.shape[-2]] = self._put_together(hidden, rotation, step)
        if hidden.dim() == 3:
            few.rows.copy_(hidden[0])
        step.pending.append(few.program)
        if self._is_last:
            run(*step.pending)
        return few.found

    def _put_together(self, hidden: torch.Tensor, rotation: Rotation | None, step: CpuStep) -> FewRows:
        """Makes the program for so many rows; the first layer reads them from memory of its own."""
        fused, program = self.fused, Program(self._arena)
        rows = hidden if hidden.dim() == 2 else hidden[0].clone()
        qkv = _projected(_normed(rows, fused.before_attention, program), fused.qkv, program)
        query = rotate_and_write(qkv, rotation, step.target(fused.index), norms=fused.head_norms, program=program)
        seen = program.empty(len(rows), fused.heads, fused.head_dim, dtype=rows.dtype)
        step.add_attention(fused.index, query, fused.rule, seen, program)
        found = self._rest(rows, seen, program)
        return FewRows(
            rows=rows,
            program=program,
            found=found,
            rotation=rotation,
            memory=weakref.ref(step.memory),
            threads=torch.get_num_threads(),
        )

    def _rest(self, rows: torch.Tensor, seen: torch.Tensor, program: Program | None = None) -> torch.Tensor:
        """What comes after attention, which gave `seen`."""
        fused = self.fused
        rows = _residual(rows, seen.flatten(1), (fused.output, fused.after_attention), program)
        both = _projected(_normed(rows, fused.before_mlp, program), fused.gate_up, program)
        gate = gated(both, fused.activation, program=program)
        return _residual(rows, gate, (fused.down, fused.after_mlp), program)


class FusedNorm(nn.Module):
    """The norm behind the last layer, which gives transformers its batch of one back."""

    def __init__(self, norm: Norm) -> None:
        """Copies the weight."""
        super().__init__()
        self.norm = _norm(norm)
        self.register_parameter("weight", self.norm.weight)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Takes [rows, hidden] and returns [1, rows, hidden]."""
        return _normed(rows, self.norm).unsqueeze(0)


class FusedHead(nn.Module):
    """The product that gives logits; its weight is the one that was there, which may be the embedding's too."""

    def __init__(self, head: nn.Linear) -> None:
        """Takes the head's weight."""
        super().__init__()
        self.weight = head.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Takes [1, rows, hidden] and returns [1, rows, vocab]."""
        return project(hidden[0], self.weight).unsqueeze(0)


class RowRotation(nn.Module):
    """Cosines and sines by row, [rows, rotary_dim], in float32: rotation rounds once, in the end."""

    def __init__(self, rotary: nn.Module) -> None:
        """Asks the module that was there, which makes them of the dtype of what it is shown."""
        super().__init__()
        self.rotary = rotary
        self._shown = torch.empty(0, dtype=torch.float32)
        self._held: dict[tuple[object, ...], Rotation] = {}

    def forward(self, _hidden: torch.Tensor, position_ids: torch.Tensor, *which: object) -> Rotation:
        """Takes positions [1, rows] and, where layers rotate in several ways, which of them.

        Few rows are the same tensors in each step with so many: kernels that are put together once read them.
        """
        cosines, sines = self.rotary(self._shown, position_ids, *which)
        if position_ids.shape[1] > ROWS_FEW:
            return cosines[0], sines[0]
        held = self._held.get((cosines.shape[1], *which))
        if held is None:
            # Usable in later steps, though they may be made for the first time while gradients are off.
            with torch.inference_mode(mode=False):
                held = torch.empty_like(cosines[0]), torch.empty_like(sines[0])
            self._held[cosines.shape[1], *which] = held
        held[0].copy_(cosines[0])
        held[1].copy_(sines[0])
        return held


def _normed(rows: torch.Tensor, norm: Norm, program: Program | None = None) -> torch.Tensor:
    return rms_norm(rows, norm.weight, epsilon=norm.epsilon, offset=norm.offset, program=program)


def _projected(x: torch.Tensor, product: Product, program: Program | None = None) -> torch.Tensor:
    return project(x, product.weight, product.bias, program=program)


def _residual(
    rows: torch.Tensor, x: torch.Tensor, by: tuple[Product, Norm | None], program: Program | None
) -> torch.Tensor:
    """What came around a part of the layer plus what that part gives, by its last projection and perhaps a norm."""
    product, norm = by
    if norm is None:
        return project(x, product.weight, product.bias, plus=rows, program=program)
    return added(rows, _normed(_projected(x, product, program), norm, program), program=program)


def _head_norms(parts: LayerParts) -> HeadNorms | None:
    query, key = parts.query_norm, parts.key_norm
    if query is None or key is None:
        return None
    assert (query.epsilon, query.offset) == (key.epsilon, key.offset), f"{query} and {key}"
    weights = _copied([query.weight]), _copied([key.weight])
    return HeadNorms(query=weights[0], key=weights[1], epsilon=query.epsilon, offset=query.offset)


def _norm(norm: Norm) -> Norm:
    return Norm(weight=_copied([norm.weight]), epsilon=norm.epsilon, offset=norm.offset)


def _joined(linears: Sequence[nn.Linear]) -> Product:
    """One projection whose outputs are those of several, side by side."""
    biases = [each.bias for each in linears if getattr(each, "bias", None) is not None]
    return Product(weight=_copied([each.weight for each in linears]), bias=_copied(biases) if biases else None)


def _copied(tensors: Sequence[torch.Tensor]) -> nn.Parameter:
    """Tensors one after the other, in memory of their own."""
    return nn.Parameter(torch.cat([each.detach() for each in tensors]), requires_grad=False)


def _weights(fused: Fused) -> list[tuple[str, nn.Parameter]]:
    """Everything that was copied, under names of its own, so that it is counted among the model's parameters."""
    found: dict[str, object] = {}
    for name in ("qkv", "output", "gate_up", "down"):
        product: Product = getattr(fused, name)
        found |= {name: product.weight, f"{name}_bias": product.bias}
    for name in ("before_attention", "after_attention", "before_mlp", "after_mlp"):
        norm: Norm | None = getattr(fused, name)
        found |= {name: norm and norm.weight}
    heads = fused.head_norms
    found |= {"query_norm": heads and heads.query, "key_norm": heads and heads.key}
    return [(name, weight) for name, weight in found.items() if isinstance(weight, nn.Parameter)]
