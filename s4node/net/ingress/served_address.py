"""The configured address of a node: whether others reach it, and the certificate that it needs."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address

from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError
from s4node.net.certificates.credentials import Credentials, is_tls, missing
from s4node.net.certificates.identity import NODE
from s4node.net.transport.pair_socket import host_and_port


def check_reachable(config: Config) -> None:
    """Raise ConfigError if others would get an address that they cannot connect to."""
    address = config[settings.LISTENER_ADDRESS]
    host, _ = host_and_port(address)
    with suppress(ValueError):  # for a host name
        if ip_address(host).is_unspecified and not config[settings.LISTENER_ADVERTISE]:
            raise ConfigError(
                f"s4.listener.address = {address!r} means all interfaces of this machine, but "
                f"other nodes need a host to connect to; set s4.listener.advertise to its name"
            )


def serving_credentials(config: Config) -> Credentials | None:
    """The credentials for the configured address, None without TLS; raises ConfigError if they are
    not those of a node of our cluster."""
    address, cluster = config[settings.LISTENER_ADDRESS], config[settings.CLUSTER_NAME]
    if not is_tls(address):
        return None
    credentials = Credentials.configured(config)
    if credentials is None:
        raise missing(f"s4.listener.address = {address}")
    if credentials.holder.roles.get(cluster) != NODE:
        raise ConfigError(
            f"s4.tls.certificate is that of {credentials.holder}, which may not serve as a node of "
            f"cluster {cluster!r}; give a certificate for s4://{cluster}/{NODE}/NAME"
        )
    return credentials
