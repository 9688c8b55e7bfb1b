"""Lets tests look into a worker's KV memory; vLLM adds it to its worker's class."""

import hashlib


class KvAccess:
    """Methods that tests call by name through vLLM's own `/collective_rpc`."""

    def kv_digests(self) -> dict[str, list[str]]:
        """Of each layer the digest of each block, empty for one that is all zeros, in the order of block ids."""
        return {str(index): list(map(_digest, layer)) for index, layer in enumerate(self.model_runner.kv_caches)}

    def kv_clear(self) -> dict[str, int]:
        """Fills all blocks with zeros, as if nothing had ever been computed; says how many bytes."""
        layers = self.model_runner.kv_caches
        for layer in layers:
            layer.zero_()
        return {"bytes": sum(layer.nbytes for layer in layers)}


def _digest(block) -> str:
    import torch  # noqa: PLC0415  the worker has it; this module is also read where it is not

    content = block.contiguous().view(torch.uint8)
    return hashlib.blake2b(content.numpy().tobytes(), digest_size=8).hexdigest() if content.any() else ""
