"""Certificates for tests: an authority in a folder, and credentials that it has signed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pynng
from harness import RawPeer, raw_peer

from s4node import Credentials
from s4node.net.certificates.authority import Authority

TLS = "tls+tcp://127.0.0.1:0"


class Issuer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.in_folder(folder)

    def files(self, *identities: str, days: float = 1) -> Mapping[str, str]:
        holder = self.authority.issue(identities, days)
        lines = (self.folder / holder.name / "tls.properties").read_text().splitlines()
        return {key: value for key, _, value in (line.partition(" = ") for line in lines)}

    def node(self, cluster: str = "default", name: str = "node") -> dict[str, str]:
        return {**self.files(f"s4://{cluster}/node/{name}"), "s4.listener.address": TLS}

    def credentials(self, *identities: str, days: float = 1) -> Credentials:
        return Credentials(*self.files(*identities, days=days).values())

    @asynccontextmanager
    async def peer(self, address: str, identity: str, node: str = "node") -> AsyncIterator[RawPeer]:
        """A peer that nng connects and that may send anything."""
        certificate, key, authority = (Path(file) for file in self.files(identity).values())
        config = pynng.TLSConfig(
            pynng.TLSConfig.MODE_CLIENT,
            server_name=node,
            ca_files=[str(authority)],
            own_key_string=key.read_text(),
            own_cert_string=certificate.read_text(),
        )
        async with raw_peer(address, config) as peer:
            yield peer
