"""Who a peer is: the identities that its certificate names. Pure.

Rules
- An identity is the URI ``s4://CLUSTER/ROLE/NAME``, a subject alternative name of the certificate.
- A certificate may have an identity in several clusters, one in each, all with one name: a node
  whose app sends to another cluster is a producer there.
- Who dials accepts only a node of a cluster in which it has an identity itself. The host that a
  certificate may name does not matter: partitions move between the nodes of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from s4node.config.kinds import is_name

NODE, PRODUCER, READER, OPERATOR = ROLES = ("node", "producer", "reader", "operator")
"""Roles: what the holder of a certificate is."""

_SCHEME = "s4://"


class Identity(NamedTuple):
    """One identity: ``name`` has this ``role`` in ``cluster``."""

    cluster: str
    role: str
    name: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.cluster}/{self.role}/{self.name}"

    @classmethod
    def parse(cls, uri: str) -> Identity:
        """The identity of a URI; raises ValueError."""
        parts = uri.removeprefix(_SCHEME).split("/")
        if not uri.startswith(_SCHEME) or len(parts) != 3 or not all(map(_is_part, parts)):
            raise ValueError(f"{uri} is not an identity; write s4://CLUSTER/ROLE/NAME")
        if parts[1] not in ROLES:
            raise ValueError(f"{uri} has the role {parts[1]!r}; roles are {', '.join(ROLES)}")
        return cls(*parts)


class Holder(NamedTuple):
    """The holder named by a certificate: ``roles`` by cluster, and a serial number.

    ``expires`` is a Unix time in seconds.
    """

    name: str
    roles: Mapping[str, str]
    serial: int
    expires: float

    @classmethod
    def of(cls, uris: Iterable[str], serial: int, expires: float) -> Holder:
        """The holder of a certificate with these URIs; raises ValueError if they do not do."""
        found = [Identity.parse(uri) for uri in uris if uri.startswith(_SCHEME)]
        if not found:
            raise ValueError("it has no identity: no URI s4://CLUSTER/ROLE/NAME in its names")
        roles = {identity.cluster: identity.role for identity in found}
        if len(roles) < len(found) or len({identity.name for identity in found}) > 1:
            raise ValueError(
                f"its identities {', '.join(map(str, found))} are not one for each cluster, all "
                f"with the same name"
            )
        return cls(found[0].name, roles, serial, expires)

    def __str__(self) -> str:
        return ", ".join(str(Identity(c, role, self.name)) for c, role in self.roles.items())

    def owns(self, producer: str) -> bool:
        """Return True for the name itself as a producer's id, and for ids that it begins."""
        return producer == self.name or producer.startswith(f"{self.name}/")

    def may_be(self, producer: str) -> bool:
        """Return True if a producer with this id may be the holder's: nodes send as any."""
        return self.owns(producer) or NODE in self.roles.values()

    def own_id(self, name: str) -> str:
        return name if self.owns(name) else f"{self.name}/{name}"


def unfit_to_serve(peer: Holder, ours: Holder) -> str:
    """The reason why a dialled peer is not a node of ours, as the end of a sentence; or empty."""
    if any(peer.roles.get(cluster) == NODE for cluster in ours.roles):
        return ""
    return f"its certificate is that of {peer}, which is not a node of {' or '.join(ours.roles)}"


def _is_part(text: str) -> bool:
    return is_name(text) and text.isprintable() and text.isascii() and not set("~#@") & set(text)
