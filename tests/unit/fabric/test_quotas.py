"""Bytes by tenant: counted, bounded where there is a bound, and forgotten with the last."""

import pytest

from fakes.keys import OTHER, TENANT
from kvist.fabric.claims import BookLimits
from kvist.fabric.quotas import Quotas

LIMITS = BookLimits(bytes_max=1000, extent_bytes=100, tenant_bytes_max={OTHER: 30}, tenant_bytes_default=50)


def test_a_tenant_has_its_own_quota_or_everybody_s() -> None:
    assert (Quotas(LIMITS).of(OTHER), Quotas(LIMITS).of(TENANT)) == (30, 50)
    unbounded = Quotas(BookLimits(bytes_max=1000, extent_bytes=100))
    assert unbounded.of(TENANT) is None
    assert not unbounded.exceeded(TENANT, 2**40)


def test_more_than_the_quota_is_too_much_and_all_of_it_is_not() -> None:
    quotas = Quotas(LIMITS)
    quotas.change(OTHER, 20)
    assert (quotas.exceeded(OTHER, 10), quotas.exceeded(OTHER, 11)) == (False, True)
    assert (quotas.exceeded(TENANT, 50), quotas.exceeded(TENANT, 51)) == (False, True)


def test_a_tenant_that_has_nothing_is_forgotten() -> None:
    quotas = Quotas(LIMITS)
    quotas.change(OTHER, 20)
    quotas.change(TENANT, 7)
    before = quotas.all_held()
    quotas.change(OTHER, -20)
    assert before == {OTHER: 20, TENANT: 7}
    assert quotas.all_held() == {TENANT: 7}
    assert quotas.held(OTHER) == 0
    with pytest.raises(AssertionError, match="-1 bytes"):
        quotas.change(OTHER, -1)
