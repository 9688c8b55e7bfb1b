"""What is to be served, on what, and by whose rules: the question that a plan answers."""

from dataclasses import dataclass

from kvist.base.errors import ConfigError
from kvist.base.units import Bytes, Tokens
from kvist.geometry.layers import LatentLayer, ModelLayers
from kvist.planner.kv_dtype import NOT_IN_VLLM, KvFormat
from kvist.planner.memory import Machine, Rules
from kvist.planner.sharding import Parallel

_COUNT_MAX = 2**40

_VLLM_STEP = 16
"""vLLM's blocks are a multiple of so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One model on some accelerators, and the requests that it is to take.

    Attributes:
        model: what its configuration says.
        machine: one of the accelerators; all are alike.
        form: number formats of what is kept; the caller has resolved "auto".
        context_tokens: longest request, prompt and output.
        concurrency: requests of that length at once.
        rules: whose rules of memory and blocks hold.
        parallel: how the model is spread.
        utilisation: fraction of memory, of all of it ("vllm") or of what is free beside weights ("kvist").
        step_tokens: most tokens that one step computes.
        block_tokens: tokens per block; None: what the engine takes when nothing is said.
        weights_bytes: of the whole model as stored; None: counted.
        kv_bytes: for KV, on each accelerator; None: what `utilisation` leaves.
        prefix_caching: whether prefixes of earlier requests are kept.
        asynchronous: whether vLLM begins a step before the last one has ended.
        window_checkpoint_tokens: the distance at which Kvist's engine keeps windows of cached sequences.
    """

    model: ModelLayers
    machine: Machine
    form: KvFormat
    context_tokens: Tokens
    concurrency: int = 1
    rules: Rules = "vllm"
    parallel: Parallel = Parallel()
    utilisation: float = 0.9
    step_tokens: int = 8192
    block_tokens: int | None = None
    weights_bytes: Bytes | None = None
    kv_bytes: Bytes | None = None
    prefix_caching: bool = True
    asynchronous: bool = True
    window_checkpoint_tokens: Tokens = Tokens(4096)

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _check_count(name, getattr(self, name), optional=name in _OPTIONAL)
        if self.rules not in ("vllm", "kvist"):
            raise ConfigError(f"rules of {self.rules!r} are not known; they are those of vllm or kvist")
        if not 0 < self.utilisation <= 1:  # NaN compares false and ends here too
            raise ConfigError(f"memory utilisation {self.utilisation} is not above 0 and at most 1")
        if self.context_tokens > self.model.positions_max:
            raise ConfigError(
                f"a context of {self.context_tokens} tokens is longer than the model's {self.model.positions_max}"
                " positions"
            )
        if self.rules == "vllm":
            self._check_vllm()

    def _check_vllm(self) -> None:
        if self.block_tokens is not None and self.block_tokens % _VLLM_STEP:
            raise ConfigError(f"blocks of {self.block_tokens} tokens are not a multiple of vLLM's {_VLLM_STEP}")
        name = self.form.kv.name
        if name in NOT_IN_VLLM and name != self.model.dtype:
            raise ConfigError(f"vLLM keeps no KV in {name}; take the model's own {self.model.dtype}, or fp8")

    @property
    def block_tokens_asked(self) -> int:
        """Tokens per block that the engine starts from; vLLM's kernels for latents take blocks of 64."""
        if self.block_tokens is not None:
            return self.block_tokens
        latents = any(isinstance(layer, LatentLayer) for layer in self.model.layers)
        return 64 if latents and self.rules == "vllm" else 16

    @property
    def steps_in_flight(self) -> int:
        """Steps that vLLM has begun at once: one per stage, and one more where it does not wait."""
        if self.parallel.pipeline > 1:
            return self.parallel.pipeline
        return 2 if self.asynchronous else 1


_COUNTS = (
    "context_tokens",
    "concurrency",
    "step_tokens",
    "block_tokens",
    "weights_bytes",
    "kv_bytes",
    "window_checkpoint_tokens",
)
_OPTIONAL = frozenset({"block_tokens", "weights_bytes", "kv_bytes"})


def _check_count(name: str, value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _COUNT_MAX:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number, at least 1 and at most {_COUNT_MAX}")
