"""What a model's KV is: every fact that must be equal before two processes may share a block (DESIGN.md, section 5).

The model's name and the place of its files are no such facts; its weights and the numbers in its configuration are.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path

from blake3 import blake3

from kvist.app.config import ServeConfig
from kvist.app.progress import Report, silent
from kvist.app.weights import weights_digest
from kvist.blocks.form import FORM_VERSION
from kvist.blocks.keys import Namespace, namespace_of
from kvist.geometry.groups import ModelGeometry

NO_ADAPTER = "none"


def kv_facts(geometry: ModelGeometry, config: ServeConfig, *, config_digest: str, weights: str) -> Mapping[str, str]:
    """The facts by name.

    Args:
        geometry: of the model.
        config: dtype and block size.
        config_digest: of config.json: norm epsilons, soft caps and scaling shape keys too, and are not in the geometry.
        weights: their digest.
    """
    return {
        "config": config_digest,
        "weights": weights,
        "weights epoch": "0",
        "adapter": NO_ADAPTER,
        "compute dtype": config.dtype,
        "kv dtype": config.dtype,
        "geometry": repr(geometry.groups),
        "rope": repr(geometry.rope),
        "block_tokens": str(config.block_tokens),
        "hash scheme": "blake3-chain-v1",
        "layout": f"planes k, v; head-major; form {FORM_VERSION}",
    }


def kv_namespace(directory: Path, geometry: ModelGeometry, config: ServeConfig, report: Report = silent) -> Namespace:
    """Names the KV that a model computes under these settings.

    Weights are read for this only where there are tiers; KV that never leaves the process gets a name of its own.

    Raises:
        ModelError: the weights cannot be read.
    """
    weights = weights_digest(directory, report) if config.tiers else secrets.token_hex(32)
    config_digest = blake3((directory / "config.json").read_bytes()).hexdigest()
    return namespace_of(kv_facts(geometry, config, config_digest=config_digest, weights=weights))
