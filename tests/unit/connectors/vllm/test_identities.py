import pytest

from kvist.base.ids import SALTED, TENANT_DEFAULT, TenantId
from kvist.blocks.keys import tenant_key, tenant_tag
from kvist.connectors.vllm.identities import Tenants


def test_a_salt_names_the_tenant_that_it_names_in_our_own_server() -> None:
    tenants = Tenants(b"secret")
    assert tenants.of(None).key == tenant_key(b"secret", TENANT_DEFAULT)
    blue = tenants.of("blue")
    assert blue.key == tenant_key(b"secret", TenantId(SALTED + "blue"))
    assert blue.tag == tenant_tag(blue.key)


@pytest.mark.parametrize("salt", ["", "default", "salt:default"])
def test_no_salt_is_the_tenant_of_those_without_one(salt: str) -> None:
    tenants = Tenants(b"secret")
    assert tenants.of(salt).key != tenants.of(None).key


def test_those_seen_last_are_remembered_and_others_made_again() -> None:
    tenants = Tenants(b"secret", known_max=2)
    blue = tenants.of("blue")
    tenants.of("red")
    assert tenants.of("blue") is blue
    tenants.of("green")
    assert tenants.of("blue") is blue, "red was seen longer ago"
    red = tenants.of("red")
    assert red == Tenants(b"secret").of("red")
    assert tenants.of("red") is red
