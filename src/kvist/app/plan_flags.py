"""What to type for each engine so that it serves what was planned."""

import shlex
from dataclasses import dataclass
from fractions import Fraction

from kvist.app.plan import Answer
from kvist.geometry.architectures import SUPPORTED
from kvist.planner.kv_dtype import vllm_has_kernels

_SGLANG_DTYPES = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
_TENSORRT_DTYPES = {"fp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "nvfp4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """One engine.

    Attributes:
        engine: its name.
        command: to type; None: it cannot serve this so.
        note: what else to know.
    """

    engine: str
    command: str | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """What fits: what was asked for, or as much of it as there is room for.

    Attributes:
        tokens: longest request.
        requests: at once.
        of_memory: weights and KV, as a part of all memory.
        of_all: the same with workspace and reserve.
        of_free: KV, as a part of what all else leaves free.
    """

    tokens: int
    requests: int
    of_memory: str
    of_all: str
    of_free: str


def engine_flags(answer: Answer) -> tuple[EngineFlags, ...]:
    """For vLLM, SGLang, TensorRT-LLM and Kvist; none where not one request fits."""
    served = _served(answer)
    if served is None:
        return ()
    return (_vllm(answer, served), _sglang(answer, served), _tensorrt(answer, served), _kvist(answer, served))


def _served(answer: Answer) -> _Served | None:
    plan, asked = answer.plan, answer.deployment
    tokens = min(asked.context_tokens, plan.longest_request_tokens)
    if tokens < 1 or plan.kv_bytes_left_per_rank <= 0:
        return None
    total = asked.machine.bytes_total
    used = plan.weights_bytes_per_rank + plan.workspace_bytes_per_rank + plan.reserve_bytes_per_rank
    return _Served(
        tokens=tokens,
        requests=max(1, min(asked.concurrency, plan.concurrent_requests)),
        of_memory=_part(plan.weights_bytes_per_rank + plan.kv_bytes_left_per_rank, total),
        of_all=_part(used + plan.kv_bytes_left_per_rank, total),
        of_free=_part(plan.kv_bytes_left_per_rank, max(1, total - used)),
    )


def _vllm(answer: Answer, served: _Served) -> EngineFlags:
    asked = answer.deployment
    if not vllm_has_kernels(asked.form.kv, asked.model.layers):
        return EngineFlags(
            engine="vLLM", command=None, note=f"has no attention for such layers in {asked.form.kv.name}"
        )
    words = [*_spread(answer, "--tensor-parallel-size", "--pipeline-parallel-size"), *_whole_precision(answer)]
    if asked.parallel.context > 1:
        words += ["--decode-context-parallel-size", str(asked.parallel.context)]
    if asked.kv_bytes is not None:
        words += ["--kv-cache-memory-bytes", str(asked.kv_bytes)]
    else:
        same = asked.rules == "vllm"
        words += ["--gpu-memory-utilization", f"{asked.utilisation:g}" if same else served.of_all]
    words += ["--max-model-len", str(served.tokens), "--max-num-seqs", str(served.requests)]
    words += ["--max-num-batched-tokens", str(asked.step_tokens)]
    if _is_quantised(answer):
        words += ["--kv-cache-dtype", asked.form.kv.name]
    note = "with the plugin vllm-gguf-plugin, without which it reads no GGUF since 0.24" if _is_gguf(answer) else ""
    return EngineFlags(engine="vLLM", command=_command("vllm", "serve", answer.model.given, *words), note=note)


def _sglang(answer: Answer, served: _Served) -> EngineFlags:
    asked = answer.deployment
    name = asked.form.kv.name
    if _is_quantised(answer) and name not in _SGLANG_DTYPES:
        return EngineFlags(engine="SGLang", command=None, note=f"keeps no KV in {name}")
    words = [*_spread(answer, "--tp-size", "--pp-size"), *_whole_precision(answer)]
    if asked.parallel.context > 1:
        words += ["--dcp-size", str(asked.parallel.context)]
    words += ["--mem-fraction-static", served.of_memory]
    words += ["--context-length", str(served.tokens), "--max-running-requests", str(served.requests)]
    words += ["--chunked-prefill-size", str(asked.step_tokens)]
    if _is_quantised(answer):
        words += ["--kv-cache-dtype", _SGLANG_DTYPES[name]]
    launch = ("python", "-m", "sglang.launch_server", "--model-path", answer.model.given)
    return EngineFlags(engine="SGLang", command=_command(*launch, *words))


def _tensorrt(answer: Answer, served: _Served) -> EngineFlags:
    asked = answer.deployment
    name = asked.form.kv.name
    if why := _why_not_tensorrt(answer):
        return EngineFlags(engine="TensorRT-LLM", command=None, note=why)
    words = [*_spread(answer, "--tp_size", "--pp_size"), "--kv_cache_free_gpu_memory_fraction", served.of_free]
    words += ["--max_seq_len", str(served.tokens), "--max_batch_size", str(served.requests)]
    words += ["--max_num_tokens", str(asked.step_tokens)]
    config = f"kv_cache_config: {{free_gpu_memory_fraction: {served.of_free}"
    if _is_quantised(answer):
        note = f"and in the file of --config: {config}, dtype: {_TENSORRT_DTYPES[name]}}}"
    else:
        note = f"or in the file of --config: {config}}}"
    return EngineFlags(engine="TensorRT-LLM", command=_command("trtllm-serve", answer.model.given, *words), note=note)


def _why_not_tensorrt(answer: Answer) -> str | None:
    asked = answer.deployment
    if _is_quantised(answer) and asked.form.kv.name not in _TENSORRT_DTYPES:
        return f"keeps no KV in {asked.form.kv.name}"
    if _is_gguf(answer):
        return "reads no GGUF files"
    return "divides no context as was planned" if asked.parallel.context > 1 else None


def _kvist(answer: Answer, served: _Served) -> EngineFlags:
    asked = answer.deployment
    size = answer.plan.kv_bytes_left_per_rank // 2**20
    if why := _why_not_kvist(answer):
        return EngineFlags(engine="Kvist", command=None, note=f"{why}; it is tiers for vLLM's KV")
    words = ["--kv-memory", f"{size}MiB", "--model-tokens-max", str(served.tokens)]
    words += ["--sequences-max", str(served.requests), "--step-tokens", str(asked.step_tokens)]
    if asked.machine.host_link_bytes_per_s is not None:
        words += ["--device", "cuda"]
    return EngineFlags(engine="Kvist", command=_command("kvist", "serve", "--model", answer.model.own, *words))


def _why_not_kvist(answer: Answer) -> str | None:
    """Why Kvist's own engine cannot serve this; None: it can."""
    asked = answer.deployment
    served = {architecture.model_type for architecture in SUPPORTED}
    if asked.model.model_type not in served:
        return f"its own engine does not serve {asked.model.model_type}"
    if asked.parallel.ranks > 1:
        return "its own engine computes on one accelerator"
    if _is_quantised(answer):
        return f"its own engine keeps no KV in {asked.form.kv.name} for weights in {asked.model.dtype}"
    return None if answer.plan.kv_bytes_left_per_rank >= 2**20 else "less than 1 MiB is left for KV"


def _spread(answer: Answer, tensor: str, pipeline: str) -> list[str]:
    parallel = answer.deployment.parallel
    words = [tensor, str(parallel.tensor)] if parallel.tensor > 1 else []
    return words + ([pipeline, str(parallel.pipeline)] if parallel.pipeline > 1 else [])


def _whole_precision(answer: Answer) -> list[str]:
    """Engines narrow float32 to 16 bits unless told otherwise; weights and KV are then half of what was planned."""
    return ["--dtype", "float32"] if answer.deployment.model.dtype == "float32" else []


def _is_gguf(answer: Answer) -> bool:
    return answer.model.given.lower().endswith(".gguf")


def _is_quantised(answer: Answer) -> bool:
    """Whether KV is kept in another dtype than the model's own, which engines have to be told."""
    return answer.deployment.form.kv.name != answer.deployment.model.dtype


def _part(some: int, whole: int) -> str:
    """A fraction rounded down to three digits, so that what is typed never takes more than was planned."""
    return f"{int(Fraction(some, whole) * 1000) / 1000:g}"


def _command(*words: str) -> str:
    return " ".join(shlex.quote(word) for word in words)
