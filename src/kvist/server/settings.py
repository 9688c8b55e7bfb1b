"""What one server is told at start: which model it presents and how much it takes from a client."""

from dataclasses import dataclass

from kvist.base.units import Bytes, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """How the one model is presented.

    Attributes:
        id: the name that requests must give.
        root: local path that the weights came from.
        created_s: Unix time at which the model was loaded.
        owned_by: shown as it is.
    """

    id: str
    root: str
    created_s: int
    owned_by: str = "kvist"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCard:
    """How the memory was divided at start, for whoever compares it with a plan.

    Attributes:
        weights_bytes: of all parameters.
        workspace_bytes: most that one full step took beyond weights and KV.
        dtype: of keys and values.
        block_tokens: tokens per block.
        step_tokens: most tokens of one step.
        sequences_max: sequences that may run at once.
        model_tokens_max: longest sequence that was asked for, whether it fits or not.
        window_checkpoint_tokens: the distance at which windows of cached sequences are kept.
    """

    weights_bytes: Bytes
    workspace_bytes: Bytes
    dtype: str
    block_tokens: int
    step_tokens: int
    sequences_max: int
    model_tokens_max: Tokens
    window_checkpoint_tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Bounds on what a client may send; the engine's own bounds come from the engine.

    Attributes:
        model: the one model that is served.
        memory: shown by `/metrics`; None: nobody knows, and it is left out.
        body_bytes_max: longest request body.
        body_seconds_max: how long a client may take to send its body.
        choices_max: sequences of one request: prompts times `n`.
    """

    model: ModelCard
    memory: MemoryCard | None = None
    body_bytes_max: Bytes = Bytes(8 * 2**20)
    body_seconds_max: float = 60.0
    choices_max: int = 128
