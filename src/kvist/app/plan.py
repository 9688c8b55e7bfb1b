"""What `kvist plan` asks the planner, and everything that it answers. Reads files; decides nothing by itself.

flags -> Ask -> model and machine -> Deployment -> plan, changes, break-even, flags for engines
"""

from dataclasses import dataclass, replace

from kvist.app.accelerators import accelerator
from kvist.app.plan_model import PlannedModel, planned_model
from kvist.base.errors import ConfigError
from kvist.base.units import Bytes, Tokens, format_bytes
from kvist.geometry.groups import DTYPE_BYTES, Dtype
from kvist.planner.breakeven import BreakEven, break_even
from kvist.planner.changes import Change, Knob, changes, remedies
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.memory import Machine, Rules
from kvist.planner.plan import Plan, memory_use, plan
from kvist.planner.sharding import Parallel

AUTO = "auto"

_UTILISATION: dict[Rules, float] = {"vllm": 0.92, "kvist": 0.8}
"""What each engine takes when nothing is said: vLLM of all memory, Kvist of what weights and workspace leave."""

_STEP_TOKENS: dict[Rules, int] = {"vllm": 8192, "kvist": 1024}
"""Likewise; vLLM takes 2,048 on GPUs of less than 70 GiB and on the A100, and 16,384 on those of 160 GiB and more."""

_FLAGS: dict[Knob, str] = {
    "kv_dtype": "--kv-dtype",
    "tensor": "--tp",
    "pipeline": "--pp",
    "utilisation": "--utilization",
    "kv_bytes": "--kv-memory",
    "context": "--context",
    "concurrency": "--concurrency",
    "memory": "--gpu-memory",
}

_LARGE_BYTES, _LARGEST_BYTES = 70 * 2**30, 160 * 2**30

_UNKNOWN = 1.0
"""Stands for a speed that nobody has said; what would need it is left out of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAsk:
    """The accelerators, as they are asked for.

    Attributes:
        name: of the catalogue; None: there is none, and `memory` says enough.
        memory: in bytes; beside a name, instead of that one's.
        tflops: dense, in bf16; host_link: bytes per second in one direction. Instead of the catalogue's, or None.
    """

    name: str | None = None
    memory: Bytes | None = None
    tflops: float | None = None
    host_link: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question as it is asked, before anything is looked up; None: what the engine or the model says.

    Attributes:
        model: a directory, a file, or a name of the catalogue.
        gpu, parallel, rules, concurrency, block_tokens: as in `Deployment`.
        context, step_tokens, utilisation, kv_memory: likewise.
        kv_dtype, state_dtype: of KV, and of recurrent states; "auto": the model's own.
        weights: bytes of all weights.
    """

    model: str
    gpu: GpuAsk
    parallel: Parallel = Parallel()
    rules: Rules = "vllm"
    context: int | None = None
    concurrency: int = 1
    kv_dtype: str = AUTO
    state_dtype: str = AUTO
    utilisation: float | None = None
    step_tokens: int | None = None
    block_tokens: int | None = None
    weights: Bytes | None = None
    kv_memory: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that is known of a deployment.

    Attributes:
        model, deployment, plan: what was asked about, with every default filled in, and what follows.
        changes: what single changes would buy.
        remedies: what would make it fit; none where it does.
        break_even: for each tier; none where speeds are not known.
    """

    model: PlannedModel
    deployment: Deployment
    plan: Plan
    changes: tuple[Change, ...]
    remedies: tuple[Change, ...]
    break_even: tuple[BreakEven, ...]


def answered(ask: Ask) -> Answer:
    """Looks up what is named and plans it.

    Raises:
        ConfigError: something named is not there, or cannot be served so, whatever the memory.
        ModelError: the model cannot be read, or is of a family that is not known.
    """
    machine, speeds_known = machine_of(ask.gpu, ask.rules)
    model = planned_model(ask.model, weights=ask.weights)
    deployment = deployment_of(ask, model, machine)
    _check_kv_memory(deployment)
    found = plan(deployment)
    return Answer(
        model=model,
        deployment=deployment,
        plan=found,
        changes=changes(deployment),
        remedies=() if found.fits else remedies(deployment),
        break_even=break_even(deployment) if speeds_known else (),
    )


def machine_of(ask: GpuAsk, rules: Rules) -> tuple[Machine, bool]:
    """The accelerator that is asked for, and whether its speeds are known.

    Memory that is given without anything else is a GPU's, or, by Kvist's rules, that of a host whose CPU computes.

    Raises:
        ConfigError: nothing is asked for, or there is no such name.
    """
    if ask.name is not None:
        machine = accelerator(ask.name)
    elif ask.memory is not None:
        link = None if rules == "kvist" else _UNKNOWN
        machine = Machine(
            name="given",
            bytes_total=ask.memory,
            bytes_per_s=_UNKNOWN,
            flops_bf16=_UNKNOWN,
            host_link_bytes_per_s=link,
        )
    else:
        raise ConfigError("on what? Say --gpu NAME, or --gpu-memory SIZE for one that is not in the catalogue")
    machine = replace(
        machine,
        bytes_total=ask.memory or machine.bytes_total,
        flops_bf16=machine.flops_bf16 if ask.tflops is None else ask.tflops * 1e12,
        host_link_bytes_per_s=machine.host_link_bytes_per_s if ask.host_link is None else float(ask.host_link),
    )
    return machine, _UNKNOWN not in (machine.flops_bf16, machine.host_link_bytes_per_s)


def deployment_of(ask: Ask, model: PlannedModel, machine: Machine) -> Deployment:
    """The question with every default filled in.

    Raises:
        ConfigError: a value is out of range, or a dtype is not known.
    """
    layers = model.layers
    if ask.rules == "kvist" and model.positions_kvist is not None:
        layers = replace(layers, positions_max=model.positions_kvist)
    dtype = layers.dtype if ask.kv_dtype == AUTO else ask.kv_dtype
    state = _state_dtype((model.state_dtype or layers.dtype) if ask.state_dtype == AUTO else ask.state_dtype)
    return Deployment(
        model=layers,
        machine=machine,
        form=KvFormat(kv=kv_dtype(dtype), conv=layers.dtype, ssm=state),
        context_tokens=Tokens(layers.positions_max if ask.context is None else ask.context),
        concurrency=ask.concurrency,
        rules=ask.rules,
        parallel=ask.parallel,
        utilisation=_UTILISATION[ask.rules] if ask.utilisation is None else ask.utilisation,
        step_tokens=_step_of(ask, machine),
        block_tokens=ask.block_tokens,
        weights_bytes=model.weights_bytes,
        kv_bytes=ask.kv_memory,
    )


def words(change: Change) -> str:
    """A change as flags of `kvist plan`; with those of others that would not stay as they were planned."""
    turned = change.deployment
    sizes = {"memory": f"{-(-turned.machine.bytes_total // 2**20)}MiB", "kv_bytes": f"{turned.kv_bytes}B"}
    said = f"{_FLAGS[change.knob]} {sizes.get(change.knob, change.value)}"
    if change.knob == "memory" and turned.kv_bytes is not None:
        said += f" --kv-memory {turned.kv_bytes}B"
    if change.knob == "memory" and turned.step_tokens != _step_tokens(turned.rules, turned.machine):
        said += f" --batch-tokens {turned.step_tokens}"
    return said


def _step_of(ask: Ask, machine: Machine) -> int:
    """Most tokens of a step: at least one for each request, which vLLM and Kvist insist on."""
    if ask.step_tokens is None:
        return max(_step_tokens(ask.rules, machine), ask.concurrency)
    if ask.step_tokens < ask.concurrency:
        raise ConfigError(
            f"a step of {ask.step_tokens} tokens cannot compute one for each of {ask.concurrency} requests; give"
            " --batch-tokens of as many, or a lower --concurrency"
        )
    return ask.step_tokens


def _step_tokens(rules: Rules, machine: Machine) -> int:
    if rules == "vllm" and machine.bytes_total >= _LARGEST_BYTES:
        return 16_384
    if rules == "vllm" and (machine.bytes_total < _LARGE_BYTES or machine.name.startswith("a100")):
        return 2048
    return _STEP_TOKENS[rules]


def _state_dtype(name: str) -> Dtype:
    for known in DTYPE_BYTES:
        if known == name:
            return known
    raise ConfigError(f"state dtype {name[:40]!r} is not known; it is one of {', '.join(DTYPE_BYTES)}")


def _check_kv_memory(deployment: Deployment) -> None:
    if deployment.kv_bytes is None:
        return
    used, total = memory_use(deployment).total, deployment.machine.bytes_total
    if deployment.kv_bytes + used > total:
        raise ConfigError(
            f"--kv-memory {format_bytes(deployment.kv_bytes)} do not fit beside {format_bytes(used)} of weights,"
            f" workspace and reserve in {format_bytes(total)}; at most {format_bytes(max(0, total - used))} do"
        )
