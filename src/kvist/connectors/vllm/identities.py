"""Whose a request's blocks are: the tenant is the client's salt, as in `kvist serve`, so that both share a pool."""

from collections import OrderedDict
from dataclasses import dataclass

from kvist.base.ids import SALTED, TENANT_DEFAULT, TenantId
from kvist.blocks.keys import TenantKey, TenantTag, tenant_key, tenant_tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """The key of a tenant's hashes, and what its blocks say of whose they are."""

    key: TenantKey
    tag: TenantTag


class Tenants:
    """Tenants by salt. Remembers those seen last, so that whoever sends a new salt each time fills nothing."""

    def __init__(self, secret: bytes, *, known_max: int = 1024) -> None:
        """Starts with nobody.

        Args:
            secret: without which nobody can make a tenant's hashes.
            known_max: how many are remembered.
        """
        assert known_max > 0, f"{known_max} tenants cannot be remembered"
        self._secret = secret
        self._known_max = known_max
        self._known: OrderedDict[str | None, Tenant] = OrderedDict()

    def of(self, salt: str | None) -> Tenant:
        """The tenant of a request that came with this salt, or with none."""
        tenant = self._known.get(salt)
        if tenant is None:
            key = tenant_key(self._secret, TENANT_DEFAULT if salt is None else TenantId(SALTED + salt))
            tenant = self._known[salt] = Tenant(key=key, tag=tenant_tag(key))
            if len(self._known) > self._known_max:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(salt)
        return tenant
