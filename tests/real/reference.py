"""What transformers itself answers: its own `generate`, its own attention, and the logits behind it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One greedy answer.

    Attributes:
        tokens: the output.
        gaps: for each output token, by how much its logit exceeds the second best.
        logits: by index of the output token drawn from them, [vocab]: of the first and of the last.
    """

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]
    logits: Mapping[int, torch.Tensor]


def generated(directory: Path, prompts: Mapping[str, Sequence[int]], tokens: int) -> dict[str, Reference]:
    """Greedy answers of exactly so many tokens in float32, by the prompts' names.

    Prompts of one length are generated together: nothing is padded, so nothing but the order of additions differs.
    """
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True).eval()
    # In place of the model's own, whose end of text would stop it early.
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=tokens, pad_token_id=0)
    by_length: dict[int, list[str]] = defaultdict(list)
    for name, prompt in prompts.items():
        by_length[len(prompt)].append(name)
    answers: dict[str, Reference] = {}
    for names in by_length.values():
        answers |= zip(names, _generate(model, torch.tensor([prompts[name] for name in names])), strict=True)
    return answers


def _generate(model: torch.nn.Module, prompts: torch.Tensor) -> list[Reference]:
    with torch.inference_mode():
        output = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), return_dict_in_generate=True, output_logits=True
        )
    best = torch.stack([logits.topk(2).values for logits in output.logits])  # [tokens, prompts, 2]
    gaps = (best[..., 0] - best[..., 1]).T.tolist()
    last = len(output.logits) - 1
    return [
        Reference(
            tokens=tuple(output.sequences[row, prompts.shape[1] :].tolist()),
            gaps=tuple(gaps[row]),
            logits={index: output.logits[index][row].clone() for index in (0, last)},
        )
        for row in range(len(prompts))
    ]
