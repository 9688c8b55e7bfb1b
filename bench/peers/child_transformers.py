"""transformers' own `generate` as a child of the comparison: default cache, default attention, one prompt at a time."""

import argparse
import sys
import time

import torch
import transformers
from child import Answer, Prompts, own_output, serve
from transformers import AutoModelForCausalLM, PreTrainedModel

from kvist.app.locate import locate
from kvist.engine.backends.device import set_threads, torch_dtype


class Stopwatch:
    """What `generate` hands its tokens to: first the prompt, then each token as it is drawn."""

    def __init__(self, begun_s: float) -> None:
        self._begun_s = begun_s
        self.times_s: list[float] = []
        self._prompt_seen = False

    def put(self, _tokens: torch.Tensor) -> None:
        """Takes a token."""
        if self._prompt_seen:
            self.times_s.append(time.perf_counter() - self._begun_s)
        self._prompt_seen = True

    def end(self) -> None:
        """There are no more."""


class TransformersChild:
    """Asks one model; prompts that come together run one after the other, which is how `generate` serves several."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def ask(self, prompts: Prompts, output: int) -> Answer:
        """One prompt after the other; see `child`."""
        begun_s = time.perf_counter()
        return {"times_s": [self._times(prompt, output, begun_s) for prompt in prompts], "cached": [0] * len(prompts)}

    def _times(self, prompt: list[int], output: int, begun_s: float) -> list[float]:
        ids, watch = torch.tensor([prompt]), Stopwatch(begun_s)
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=output,
            min_new_tokens=output,
            pad_token_id=0,
            streamer=watch,
        )
        return watch.times_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    output = own_output()
    set_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(
        locate(args.model).directory, dtype=torch_dtype(args.dtype), local_files_only=True
    ).eval()
    serve(output, {"transformers": transformers.__version__, "torch": torch.__version__}, TransformersChild(model).ask)


if __name__ == "__main__":
    sys.exit(main())
