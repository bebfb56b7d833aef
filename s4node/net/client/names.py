"""The names that a client is given: addresses of nodes, and its own id as a producer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from s4node import tokens
from s4node.errors import ConfigError
from s4node.net.certificates.credentials import Credentials, is_tls, missing
from s4node.net.transport.pair_socket import host_and_port
from s4node.net.wire import frame as wire


def addresses_of(address: str | Sequence[str], credentials: Credentials | None) -> tuple[str, ...]:
    """The address or addresses as a tuple; raises ConfigError for a bad one, none, or one that
    needs credentials."""
    several = isinstance(address, Iterable) and not isinstance(address, str)
    found: tuple[Any, ...] = tuple(address) if several else (address,)
    for one in found:
        host_and_port(one)
        if credentials is None and is_tls(one):
            raise missing(one)
    if not found:
        raise ConfigError("a client needs the address of a node; give one, or a list of them")
    return found


def id_of(producer: str, credentials: Credentials | None) -> str:
    """The id of a producer, a new one if none is given; raises ConfigError for one that it may not
    have."""
    if producer.startswith(wire.TASK):
        raise ConfigError(
            f"producer {producer!r}: ids that begin with {wire.TASK} belong to tasks; give this "
            f"one another first character"
        )
    if long := wire.too_long(producer):
        raise ConfigError(long)
    made = producer or f"client-{tokens.fresh(5)}"
    if credentials is None:
        return made
    holder = credentials.holder
    if producer and not holder.may_be(producer):
        raise ConfigError(
            f"producer {producer!r} is not an id for the certificate of {holder}; take "
            f"{holder.name!r} or one that begins with {holder.name + '/'!r}"
        )
    return made if producer else holder.own_id(made)
