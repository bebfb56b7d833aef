"""The directory of streams: which apps of other clusters consume what an app produces.

Rules
- An app registers the streams that it consumes and produces. The registration outlives its
  containers, until the app is removed: producers keep events for a consumer that is away.
- All consumers of a stream are reported together, never a difference; equal answers are reported
  once.
- While the coordination cannot be read, the last answer holds and reading is retried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from s4node.cluster.coordination.entries import RUNNING, AppId, Group
from s4node.cluster.coordination.follow import follow
from s4node.cluster.coordination.registry import Registry
from s4node.errors import S4Error
from s4node.logger import get_logger

if TYPE_CHECKING:
    from s4node.cluster.tree.contract import Session

log = get_logger("s4node.cluster")


@dataclass(frozen=True)
class Consumer:
    """An app that consumes a stream.

    By partition, ``owners`` are addresses (empty without a living owner) and ``epochs`` those in
    which they became owners; both are empty before the first assignment. ``members`` are the
    addresses of all living members, the oldest first; empty while the app does not run.
    """

    cluster: str
    app: str
    epoch: int
    owners: tuple[str, ...]
    epochs: tuple[int, ...]
    members: tuple[str, ...]


SystemConsumers = Mapping[str, Consumer]
"""The consumers of a stream by ``cluster.app``."""


class Directory:
    """The streams that an app consumes and produces, and the consumers of the latter."""

    def __init__(
        self,
        session: Session,
        *,
        cluster: str,
        app: str,
        consumes: Iterable[str] = (),
        produces: Iterable[str] = (),
        deployed: bool = False,
    ) -> None:
        self.app = AppId(cluster, app)
        self.registry = Registry(session)
        self._session = session
        self._consumes = tuple(consumes)
        self._produces = tuple(produces)
        self._deployed = deployed
        self._known: dict[str, SystemConsumers] = {}
        self._groups: dict[AppId, Group] = {}  # as last read
        self.learned = trio.Event()  # the consumers of all streams were reported once

    def consumers(self, stream: str) -> SystemConsumers:
        """The consumers of ``stream``, as :meth:`run` last reported them."""
        return self._known.get(stream, {})

    async def register(self) -> None:
        """Register the app's streams. Producers see the app from here on.

        Raises S4Error if the app was undeployed meanwhile, as nobody would remove the registration.
        Call it as a member: from then on an undeployment waits for us.
        """
        if self._deployed:
            found = await self.registry.app(self.app.cluster, self.app.app)
            if found is None or found.value.state != RUNNING:
                raise S4Error(f"app {self.app} was undeployed while it started; deploy it again")
        for stream in self._consumes:
            await self.registry.add_stream_user(stream, "consumers", self.app)
        for stream in self._produces:
            await self.registry.add_stream_user(stream, "producers", self.app)

    async def run(self, on_change: Callable[[str, SystemConsumers], None]) -> None:
        """Call ``on_change`` with a stream and its consumers, at first and when they change.

        It is called in the loop and must not block. Never returns; raises SessionLost.
        """
        if not self._produces:
            self.learned.set()
            await self._session.lost.wait()
            await self._session.change("/")  # raises SessionLost with its reason
        await follow(
            partial(self._step, on_change),
            lambda why: log.warning("cannot follow consumers", app=str(self.app), error=why),
        )

    async def _step(self, on_change: Callable[[str, SystemConsumers], None]) -> None:
        """Read everything, report what is new, and wait for news."""
        seen: dict[str, int] = {}
        for stream in self._produces:
            consumers = await self._consumers_of(stream, seen)
            if self._known.get(stream) != consumers:
                self._known[stream] = consumers
                on_change(stream, consumers)
        self.learned.set()
        await self._wait_any_change(seen)

    async def _consumers_of(self, stream: str, seen: dict[str, int]) -> SystemConsumers:
        """The consumers of ``stream``; records in ``seen`` the state of the paths that were
        read."""
        await self._note_version(Registry.path_of_stream(stream), seen)
        found: dict[str, Consumer] = {}
        for app in await self.registry.stream_users(stream, "consumers"):
            await self._note_version(Registry.path_of_app(app), seen)
            group = self._groups[app] = await self.registry.group(app, self._groups.get(app))
            found[str(app)] = Consumer(
                *app, group.epoch, group.owners, group.epochs, group.addresses
            )
        return found

    async def _note_version(self, path: str, seen: dict[str, int]) -> None:
        if path not in seen:  # an app that consumes two streams counts as of the first look
            seen[path] = await self._session.change(path)

    async def _wait_any_change(self, seen: Mapping[str, int]) -> None:
        failures: list[Exception] = []

        async def wait(path: str, number: int, scope: trio.CancelScope) -> None:
            try:
                await self._session.wait_change(path, number)
            except Exception as error:  # raised below as it is, not in a group
                failures.append(error)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            for path, number in seen.items():
                nursery.start_soon(wait, path, number, nursery.cancel_scope)
        if failures:
            raise failures[0]
