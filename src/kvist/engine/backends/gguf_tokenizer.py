r"""From the vocabulary in a GGUF to tokenizer files that are taken as they are written.

transformers rebuilds a tokenizer from a GGUF, but not all of it. What it loses is put back here:

- the rule by which text is cut before merging, where transformers does not know the rule's name (``smollm``: each
  digit alone, so that "\n    5" is not cut in the middle of its spaces);
- whole words of the vocabulary that no merge reaches (Llama 3 and Tekken vocabularies take them whole);
- the token that begins a text, when the GGUF says that there is one;
- the class: the written one rebuilds parts by its own rules when loaded, so a class that reads the file is named.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from kvist.base.errors import ModelError
from kvist.engine.backends.gguf_header import GgufHeader

_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"

_CUTS = MappingProxyType(
    {
        "smollm": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
    }
)
"""Rules of cutting that transformers does not know, as tokenizer.json writes them."""

_CUTS_BUILT_IN = ("gpt-2",)
_WHOLE_WORDS = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "tekken"})
"""Rules whose vocabularies take a word whole when they hold it, and begin a text unless the GGUF says otherwise."""

_LITERAL_CLASS = "PreTrainedTokenizerFast"
_RUNTIME_KEYS = ("is_local", "local_files_only", "add_bos_token", "add_eos_token", "post_processor")

PROBES = (
    "x",
    " Leading and trailing space ",
    "def f(x):\n    return [\n        1,\n        23,\n    ]  # 4\t5\r\n",
    "naïve café, 你好, עברית, ½ ² ٣ \uff12\uff10, \u00a0\u200b\ufeff",
    "emoji 🎉👩\u200d👩\u200d👧 and a run          of spaces\n\n\n",
    "don't I'LL <|im_start|>user\n<bos><start_of_turn></s><0x0A> ▁x",
)
"""Texts on which the saved tokenizer must agree with the one that was built."""


def begins_with_bos(header: GgufHeader) -> bool:
    """Whether a text for this model begins with the token that marks a beginning."""
    said = header.fields.get("tokenizer.ggml.add_bos_token")
    if isinstance(said, bool):
        return said
    sentencepiece = header.fields.get("tokenizer.ggml.model") == _SENTENCEPIECE
    return sentencepiece or header.fields.get("tokenizer.ggml.pre") in _WHOLE_WORDS


def check_vocabulary(header: GgufHeader, path: Path) -> None:
    """Refuses vocabularies that would be cut by a rule other than the one they were made with.

    Raises:
        ModelError: names the rule.
    """
    kind, rule = header.fields.get("tokenizer.ggml.model"), header.fields.get("tokenizer.ggml.pre")
    known = {*GGUF_PRE_TOKENIZER_SPLITS, *_CUTS, *_CUTS_BUILT_IN}
    if kind == _SENTENCEPIECE or (kind == _BYTE_LEVEL and rule in known):
        return
    raise ModelError(
        f"{path} cuts text by the rule tokenizer.ggml.model = {kind!r}, tokenizer.ggml.pre = {rule!r}, which is not "
        "known; use the model's Hugging Face directory with --model DIR"
    )


def save_tokenizer(source: Path, header: GgufHeader, target: Path, *, model_tokens_max: int) -> None:
    """Writes tokenizer files for a GGUF into a directory that has the model's config.json.

    Args:
        source: the GGUF, alone in its directory; other tokenizer files there would be mixed in.
        header: of that file.
        target: directory to write to.
        model_tokens_max: longest text the model takes.

    Raises:
        ModelError: the saved files do not give the tokens that the GGUF stands for.
        Exception: whatever transformers and tokenizers raise about damaged vocabularies; see `translated`.
    """
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    # Not AutoTokenizer: it reads the file once more to choose a class, which then matters no more.
    built = PreTrainedTokenizerFast.from_pretrained(str(source.parent), gguf_file=source.name, **options)
    built.save_pretrained(str(target))
    bos = built.bos_token_id if begins_with_bos(header) else None
    _edit(target / "tokenizer.json", lambda text: _mended_text(text, header, built.bos_token, bos))
    _edit(target / "tokenizer_config.json", lambda text: _mended_config(text, model_tokens_max))
    saved = AutoTokenizer.from_pretrained(str(target), **options)
    for difference in _differences(saved, built, header, bos):
        raise ModelError(f"the tokenizer of {source.resolve()} can not be converted faithfully: {difference}")


def _edit(path: Path, mend: Any) -> None:  # noqa: ANN401  (a function over whatever JSON holds)
    mended = mend(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(json.dumps(mended, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _mended_text(text: dict[str, Any], header: GgufHeader, bos_token: str, bos: int | None) -> dict[str, Any]:
    """Contents of tokenizer.json with what was lost."""
    rule = header.fields.get("tokenizer.ggml.pre")
    if header.fields.get("tokenizer.ggml.model") == _BYTE_LEVEL:
        if rule in _CUTS:
            text["pre_tokenizer"] = _CUTS[str(rule)]
        if rule in _WHOLE_WORDS:
            text["model"]["ignore_merges"] = True
    first, second = ({"Sequence": {"id": each, "type_id": kind}} for each, kind in (("A", 0), ("B", 1)))
    begin = [] if bos is None else [{"SpecialToken": {"id": bos_token, "type_id": 0}}]
    special = {} if bos is None else {bos_token: {"id": bos_token, "ids": [bos], "tokens": [bos_token]}}
    text["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*begin, first],
        "pair": [*begin, first, second],
        "special_tokens": special,
    }
    return text


def _mended_config(config: dict[str, Any], model_tokens_max: int) -> dict[str, Any]:
    """Contents of tokenizer_config.json with what was lost, and without what only held while converting."""
    kept = {key: value for key, value in config.items() if key not in _RUNTIME_KEYS}
    return kept | {"tokenizer_class": _LITERAL_CLASS, "model_max_length": model_tokens_max}


def _differences(
    saved: PreTrainedTokenizerBase, built: PreTrainedTokenizerBase, header: GgufHeader, bos: int | None
) -> Iterator[str]:
    """In what a saved tokenizer is not the one that the GGUF stands for."""
    mended = header.fields.get("tokenizer.ggml.pre") in (*_CUTS, *_WHOLE_WORDS)
    begin = [] if bos is None else [bos]
    for text in PROBES:
        tokens, plain = saved.encode(text), saved.encode(text, add_special_tokens=False)
        if tokens != begin + plain:
            yield f"it begins {text!r} with {tokens[:2]}, not with {begin}"
        if not mended and plain != built.encode(text, add_special_tokens=False):
            yield f"it cuts {text!r} in another way"
    if len(saved) != (stated := header.array_length("tokenizer.ggml.tokens")):
        yield f"it has {len(saved)} tokens instead of {stated}"
