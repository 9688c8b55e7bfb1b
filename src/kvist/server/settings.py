"""What one server is told at start: which model it presents and how much it takes from a client."""

from dataclasses import dataclass

from kvist.base.units import Bytes


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
class ServerSettings:
    """Bounds on what a client may send; the engine's own bounds come from the engine.

    Attributes:
        model: the one model that is served.
        body_bytes_max: longest request body.
        body_seconds_max: how long a client may take to send its body.
        choices_max: sequences of one request: prompts times `n`.
    """

    model: ModelCard
    body_bytes_max: Bytes = Bytes(8 * 2**20)
    body_seconds_max: float = 60.0
    choices_max: int = 128
