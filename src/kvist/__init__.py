"""Kvist keeps the KV cache of LLM inference alive and useful."""

__all__ = ["__version__"]

__version__ = "0.1.0"
