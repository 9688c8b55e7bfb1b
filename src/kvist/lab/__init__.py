"""Workloads and benchmarks against any OpenAI-compatible URL."""
