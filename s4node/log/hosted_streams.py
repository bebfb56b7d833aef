"""The streams that a log host serves: found by name, created and dropped while it runs.

Rules
- Spools of sinks are streams like others, but their names are kept for sinks, and they are not
  listed.
- A stream belongs to the log or to the owner of the listener, never to both.
"""

from __future__ import annotations

from typing import Any, Protocol

from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import StoreError, UnknownStream
from s4node.events.keys import hasher_named
from s4node.events.routing import KeyRule
from s4node.log.hosted import HostedStream, Shared
from s4node.log.store import SPOOL, LogStore
from s4node.log.streams import LogStream


class LogOwner(Protocol):
    """The other part that serves streams at the address of a log."""

    def taker_of(self, stream: str) -> str:
        """The part that serves a stream of this name itself; empty if none does."""
        ...


class HostedStreams:
    """The streams of ``store``, with what they have ``shared``; ``address`` is for messages.
    ``owner`` is that of the log."""

    def __init__(
        self,
        config: Config,
        store: LogStore,
        shared: Shared,
        owner: LogOwner,
        address: str,
    ) -> None:
        self.store = store
        self.by_name = {
            name: HostedStream(stream, shared) for name, stream in store.streams.items()
        }
        self.closing = False
        """True once nothing more is admitted."""
        self._config = config
        self._shared = shared
        self._owner = owner
        self._address = address

    @property
    def listed(self) -> list[HostedStream]:
        """All streams but spools, by name."""
        names = sorted(name for name in self.by_name if not name.startswith(SPOOL))
        return [self.by_name[name] for name in names]

    def find(self, name: str) -> HostedStream:
        """The stream of this name; raises UnknownStream."""
        hosted = self.by_name.get(name)
        if hosted is None:
            known = ", ".join(each.name for each in self.listed) or "none"
            raise UnknownStream(
                f"the log at {self._address} has no stream {name!r}; its streams: {known}. Create "
                f"it with: s4 log create {name}"
            )
        return hosted

    def check_open(self) -> None:
        """Raise StoreError if the log is closing."""
        if self.closing:
            raise StoreError("the log's node is stopping; try again when it has restarted")

    async def create_stream(
        self, name: str, partitions: int, key: str, **retention: Any
    ) -> HostedStream:
        """Create a stream, or find the one with these settings; raises StoreError."""
        taken = self._owner.taker_of(name)
        if taken:
            raise StoreError(f"{taken} already has a stream {name!r}; choose another name")
        if name.startswith(SPOOL):
            raise StoreError(f"names that begin with {SPOOL!r} are for sinks; choose another name")
        self.check_open()
        if key:
            KeyRule(key.split("+"))
        hasher = self._config[settings.HASHER]
        hasher_named(hasher)
        return self.host(
            await self.store.create(name, partitions, key=key, hasher=hasher, **retention)
        )

    async def create_spool(self, name: str, target: HostedStream) -> HostedStream:
        """Create the spool of a sink that writes to ``target``, or find it."""
        stream = target.stream
        found = await self.store.create(
            name,
            len(stream.partitions),
            key=stream.key,
            hasher=stream.hasher,
            retention_ms=0,
            retention_bytes=0,
        )
        return self.host(found)

    def host(self, stream: LogStream) -> HostedStream:
        """Serve a stream of the store, if it is not served yet."""
        if stream.name not in self.by_name:
            self.by_name[stream.name] = HostedStream(stream, self._shared)
        return self.by_name[stream.name]

    async def drop_stream(self, name: str) -> None:
        self.by_name.pop(name).dropped()
        await self.store.drop(name)
