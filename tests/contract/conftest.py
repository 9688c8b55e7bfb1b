"""A fresh tier of each kind, for the suites that tiers are proven by."""

from collections.abc import Iterator

import pytest

from fakes.tiers import MAKERS, Trial


@pytest.fixture(params=MAKERS)
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    """A fresh tier of each kind."""
    with MAKERS[request.param]() as made:
        yield made
