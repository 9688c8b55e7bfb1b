"""How much memory and how much time Kvist reckons with under vLLM, where the operator says nothing."""

from collections.abc import Mapping, Sequence

from kvist.app.fabric import STAGING_RECORDS_MIN
from kvist.app.vllm_weights import place_of, weight_files
from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.blocks.form import Form
from kvist.connectors.vllm.reading_config import Engine
from kvist.cost.prefill import PrefillModel, Work, prefill_model

_STAGING_MIN, _STAGING_MAX = 64 * 2**20, 2**30
_STAGING_STEPS = 4
"""Staging holds the KV of so many full steps."""

_OPERATIONS_PER_S: Mapping[str, float] = {"cpu": 1e11, "cuda": 1e14}
"""Of a device, roughly; what is learned replaces it."""

_PARAMETERS = 10**9
"""Of a model whose files are not here."""

_HIDDEN = 1024
"""Of a model that does not say."""


def default_staging(forms: Sequence[Form], block_tokens: int, batch_tokens: int, free_bytes: int) -> int:
    """Bytes of staging: a few full steps, within what the machine can spare, and at least what staging needs.

    Args:
        forms: of the records, by group.
        block_tokens: of a record.
        batch_tokens: most tokens in a step.
        free_bytes: of the machine's memory.
    """
    token_bytes = sum(form.record_bytes for form in forms) / block_tokens
    wanted = min(max(int(_STAGING_STEPS * batch_tokens * token_bytes), _STAGING_MIN), _STAGING_MAX)
    least = STAGING_RECORDS_MIN * sum(form.record_bytes for form in forms)
    return max(min(wanted, free_bytes // 4), least, 2**20)


def expected_prefill(engine: Engine) -> PrefillModel:
    """How long computing should take, from the size of the weights and of attention; a start, until it is measured."""
    setup = engine.setup
    try:
        parameters = sum(path.stat().st_size for path in weight_files(place_of(engine))) // 2
    except (ConfigError, OSError):
        parameters = _PARAMETERS
    work = Work(
        parameters=parameters,
        attention_width=attention_width(engine),
        operations_per_s=_OPERATIONS_PER_S.get(setup.device, 1e12),
    )
    return prefill_model(work, step_tokens=Tokens(setup.batch_tokens))


def attention_width(engine: Engine) -> int:
    """About as wide as the query heads of all layers that see every position: most models' are as the hidden size."""
    text = engine.facts.model.get("text_config", engine.facts.model)
    hidden = text.get("hidden_size") if isinstance(text, Mapping) else None
    layers = sum(len(each.group.layers) for each in engine.groups if each.group.window is None)
    return layers * (hidden if isinstance(hidden, int) and hidden > 0 else _HIDDEN)
