"""How random tests run: "ci" is small and the same each time, "deep" (HYPOTHESIS_PROFILE=deep) is for the night."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("deep", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
