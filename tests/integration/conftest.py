"""What tests measure is shown at the end of the run."""

from measured import measured, pytest_terminal_summary

__all__ = ["measured", "pytest_terminal_summary"]
