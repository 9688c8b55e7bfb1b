"""A tiny random model as a directory on disk: configuration, weights, and a tokenizer that knows every byte."""

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tiny_models import tiny_configs, tiny_model

BEGIN, END, TURN = "<begin>", "<end>", "<turn>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<turn>{{ message['role'] }}\n{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


def write_tiny_directory(folder: Path, name: str = "llama", *, dtype: torch.dtype = torch.float32) -> Path:
    """Writes the tiny model of this name, as `save_pretrained` does, and a tokenizer of 259 tokens."""
    tiny_model(tiny_configs()[name], dtype=dtype).save_pretrained(folder)
    write_tiny_tokenizer(folder)
    return folder


def write_tiny_tokenizer(folder: Path) -> None:
    """Writes a tokenizer whose tokens 0 to 2 are special and whose others are one byte each."""
    special = [TURN, BEGIN, END]
    names = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        additional_special_tokens=[TURN],
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)
