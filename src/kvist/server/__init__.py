"""OpenAI-compatible HTTP API of one engine."""
