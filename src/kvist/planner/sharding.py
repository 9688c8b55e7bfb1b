"""What one of several accelerators keeps: heads divided or repeated, latents repeated, layers divided into stages.

Knows layers, not bytes. The rules are those of vLLM: tensor parallelism divides KV heads while there are enough and
repeats them where there are not, and context parallelism divides the tokens among accelerators that would otherwise
repeat the same heads, so it takes no accelerators of its own.

    tensor 4, 2 KV heads, context 1      | head 0 | head 0 | head 1 | head 1 |       every byte twice
    tensor 4, 2 KV heads, context 2      | head 0 a | head 0 b | head 1 a | head 1 b |       once
"""

from dataclasses import dataclass, replace

from kvist.base.errors import ConfigError
from kvist.geometry.layers import (
    AttentionLayer,
    KvLayer,
    LatentLayer,
    ModelLayers,
    PlainLayer,
    RecurrentLayer,
    SharedLayer,
    StateTensor,
)

_RANKS_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Over how many accelerators a model is spread.

    Attributes:
        tensor: accelerators that share every layer.
        pipeline: stages, each with some of the layers.
        context: parts that the tokens of a sequence are divided into, within `tensor`.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "context"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _RANKS_MAX:
                raise ConfigError(f"{name} parallelism of {value!r} is not in 1..{_RANKS_MAX}")
        if self.tensor % self.context:
            raise ConfigError(
                f"context parallelism of {self.context} does not divide tensor parallelism of {self.tensor}, whose"
                " accelerators it uses"
            )

    @property
    def ranks(self) -> int:
        """Accelerators in all."""
        return self.tensor * self.pipeline


def stage_layers(layers: int, pipeline: int) -> tuple[range, ...]:
    """Which layers each stage has; what is over goes to the stages before the last, which has the output as well.

    Raises:
        ConfigError: there are fewer layers than stages.

    >>> stage_layers(10, 4)
    (range(0, 2), range(2, 5), range(5, 8), range(8, 10))
    """
    if pipeline > layers:
        raise ConfigError(f"pipeline parallelism of {pipeline} is more than the model's {layers} layers")
    sizes = [layers // pipeline] * pipeline
    for behind in range(2, layers % pipeline + 2):
        sizes[-behind] += 1
    ends = [sum(sizes[: index + 1]) for index in range(pipeline)]
    return tuple(range(end - size, end) for size, end in zip(sizes, ends, strict=True))


def sharded(model: ModelLayers, parallel: Parallel) -> tuple[KvLayer, ...]:
    """All layers as one accelerator of their stage sees them: its heads, its part of the states, all its tokens.

    Raises:
        ConfigError: something does not divide.
    """
    if model.query_heads % parallel.tensor:
        raise ConfigError(
            f"tensor parallelism of {parallel.tensor} does not divide the model's {model.query_heads} query heads;"
            f" take one of {_divisors(model.query_heads)}"
        )
    for layer in model.layers:
        _check_context(layer, parallel)
    return tuple(_shard(layer, parallel.tensor) for layer in model.layers)


def rank_layers(model: ModelLayers, parallel: Parallel, stage: int) -> tuple[KvLayer, ...]:
    """The layers of one accelerator, first to last; layers that read another's KV find it within the stage.

    Args:
        model: the whole of it.
        parallel: how it is spread.
        stage: of the pipeline, 0 to `parallel.pipeline - 1`; all accelerators of a stage are alike.

    Raises:
        ConfigError: something does not divide, or a layer would read KV of another stage.
    """
    own = stage_layers(len(model.layers), parallel.pipeline)[stage]
    # Its own only: a plan asks for every stage, and searches make thousands of plans.
    layers = sharded(replace(model, layers=model.layers[own.start : own.stop]), parallel)
    return tuple(_moved(layer, index, own) for index, layer in zip(own, layers, strict=True))


def _moved(layer: KvLayer, index: int, own: range) -> KvLayer:
    if not isinstance(layer, SharedLayer):
        return layer
    if layer.source not in own:
        raise ConfigError(
            f"layer {index} reads the KV of layer {layer.source}, which pipeline parallelism would put into another"
            " stage; use tensor parallelism"
        )
    return SharedLayer(source=layer.source - own.start)


def _check_context(layer: KvLayer, parallel: Parallel) -> None:
    if parallel.context == 1 or isinstance(layer, LatentLayer | RecurrentLayer | SharedLayer | PlainLayer):
        return
    if layer.window is not None or layer.chunk is not None:
        raise ConfigError(f"context parallelism of {parallel.context} does not divide layers that see a window only")
    repeated = max(1, parallel.tensor // layer.kv_heads)
    if repeated % parallel.context:
        raise ConfigError(
            f"context parallelism of {parallel.context} needs as many accelerators with the same KV heads; with tensor"
            f" parallelism of {parallel.tensor} and {layer.kv_heads} KV heads there are {repeated}"
        )


def _shard(layer: KvLayer, tensor: int) -> KvLayer:
    match layer:
        case AttentionLayer():
            if layer.kv_heads % tensor and tensor % layer.kv_heads:
                raise ConfigError(
                    f"tensor parallelism of {tensor} neither divides the model's {layer.kv_heads} KV heads nor is a"
                    f" multiple of them; take one of {_divisors(layer.kv_heads)}, or a multiple"
                )
            return replace(layer, kv_heads=max(1, layer.kv_heads // tensor))
        case RecurrentLayer():
            return RecurrentLayer(tensors=tuple(_shard_state(each, tensor) for each in layer.tensors))
        case _:
            return layer


def _shard_state(state: StateTensor, tensor: int) -> StateTensor:
    """Heads or channels, which come first, are divided."""
    if not state.sharded:
        return state
    if state.shape[0] % tensor:
        raise ConfigError(
            f"tensor parallelism of {tensor} does not divide the {state.shape[0]} rows of the {state.name} state"
        )
    return replace(state, shape=(state.shape[0] // tensor, *state.shape[1:]))


def _divisors(number: int) -> str:
    return ", ".join(str(each) for each in range(1, min(number, 1024) + 1) if number % each == 0)
