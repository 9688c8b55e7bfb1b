"""How many examples a random test runs: as many as it says, twenty times as many in the profile "deep"."""

from hypothesis import settings

FACTORS = {"ci": 1, "deep": 20}


def examples(count: int) -> int:
    """Examples for a test that needs `count` of them to be worth running."""
    return count * FACTORS.get(settings.get_current_profile_name(), 1)
