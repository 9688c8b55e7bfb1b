"""vLLM as a child of the comparison; runs in vLLM's own environment: `bench/peers/vllm_cpu run -- child_vllm.py`.

vLLM's engine and worker are processes of their own, as they are under its server: in its way of keeping all in one
process, torch's threads are bound otherwise.
"""

import argparse
import itertools
import sys
import time

from child import Answer, Prompts, own_output, serve


class VllmChild:
    """Asks one `LLM` step by step and notes when each token came."""

    def __init__(self, llm: object) -> None:
        self._engine = llm.llm_engine
        self._ids = itertools.count()

    def ask(self, prompts: Prompts, output: int) -> Answer:
        """All prompts at once; see `child`."""
        from vllm import SamplingParams  # noqa: PLC0415 - after the pipe was saved: it writes as it is imported
        from vllm.inputs import TokensPrompt  # noqa: PLC0415 - see above
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - see above

        wanted = SamplingParams(
            temperature=0,
            max_tokens=output,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        begun_s = time.perf_counter()
        ids = [str(next(self._ids)) for _ in prompts]
        for name, prompt in zip(ids, prompts, strict=True):
            self._engine.add_request(name, TokensPrompt(prompt_token_ids=prompt), wanted)
        times: dict[str, list[float]] = {name: [] for name in ids}
        cached = dict.fromkeys(ids, 0)
        while self._engine.has_unfinished_requests():
            for found in self._engine.step():
                at_s = time.perf_counter() - begun_s
                times[found.request_id] += [at_s] * len(found.outputs[0].token_ids)
                cached[found.request_id] = max(cached[found.request_id], found.num_cached_tokens or 0)
        return {"times_s": list(times.values()), "cached": list(cached.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", required=True, help="of the model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-bytes", type=int, default=2**31)
    parser.add_argument("--compiled", action="store_true", help="with what torch compiles; eager without")
    args = parser.parse_args()
    output = own_output()
    import vllm  # noqa: PLC0415 - see above

    llm = vllm.LLM(
        model=args.directory,
        dtype=args.dtype,
        max_model_len=8192,
        block_size=32,
        max_num_seqs=64,
        enforce_eager=not args.compiled,
        enable_prefix_caching=True,
        kv_cache_memory_bytes=args.kv_bytes,
        seed=0,
    )
    serve(output, {"vllm": vllm.__version__}, VllmChild(llm).ask)


if __name__ == "__main__":
    sys.exit(main())
