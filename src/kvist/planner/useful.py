"""What tokens and requests keep in useful bytes: no blocks, no padding, no engine's rules.

What every engine needs at least. Windows keep what they show and nothing more, states what they are.
"""

from collections.abc import Sequence

from kvist.base.units import Bytes
from kvist.geometry.layers import AttentionLayer, KvLayer
from kvist.planner.kv_dtype import KvFormat


def reach(layer: KvLayer) -> int | None:
    """How many positions a layer keeps at most; None: all, or nothing that is counted in positions."""
    if not isinstance(layer, AttentionLayer):
        return None
    return layer.window if layer.window is not None else layer.chunk


def bytes_per_token(layers: Sequence[KvLayer], form: KvFormat) -> Bytes:
    """Bytes of one token in every layer that keeps tokens, windows disregarded."""
    return Bytes(sum(form.token_bytes(layer) for layer in layers))


def bytes_per_token_beyond_windows(layers: Sequence[KvLayer], form: KvFormat) -> Bytes:
    """Bytes by which a long sequence grows with each token: those of the layers that see everything."""
    return Bytes(sum(form.token_bytes(layer) for layer in layers if reach(layer) is None))


def bytes_fixed(layers: Sequence[KvLayer], form: KvFormat) -> Bytes:
    """Bytes that a long sequence takes whatever its length: full windows, and states."""
    return Bytes(sum(form.token_bytes(layer) * (reach(layer) or 0) + form.state_bytes(layer) for layer in layers))


def useful_bytes(layers: Sequence[KvLayer], form: KvFormat, tokens: int) -> Bytes:
    """Bytes that later tokens of a sequence of this length may read."""
    kept = (min(tokens, reach(layer) or tokens) * form.token_bytes(layer) for layer in layers)
    return Bytes(sum(kept) + (sum(form.state_bytes(layer) for layer in layers) if tokens else 0))
