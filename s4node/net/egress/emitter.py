"""The emitter: a process's connections to the nodes of one cluster.

Rules
- The emitter dials the seeds first. The answers to hellos name further nodes: every node that owns
  a partition of some outbox gets a link.
- When a link is lost, all known nodes are dialled to learn the new owners of its partitions;
  unacknowledged events go there.
- A link to a node that has gone, and that no outbox needs, is closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import trio

from s4node.net.certificates.credentials import Credentials
from s4node.net.egress.link import Link
from s4node.net.egress.routes import NodeRoute, Routes
from s4node.net.transport.pair_socket import host_and_port

_MOMENT = 0.5
"""Seconds that connecting to a node may take."""


class EmitterOwner(Protocol):
    def take_news(self) -> None:
        """A verdict or hello has come, events have left the queues, or a peer has come or gone."""


class Emitter:
    """Carries any number of outboxes to the cluster of the nodes at ``seeds``.

    ``credentials`` are for nodes that speak TLS. ``owner`` gets news of outboxes and peers.
    """

    def __init__(
        self,
        seeds: Iterable[str] = (),
        *,
        credentials: Credentials | None,
        queue_size: int,
        owner: EmitterOwner,
    ) -> None:
        self.links: dict[str, Link] = {}
        self.carried: list[Routes] = []
        self._seeds = tuple(seeds)
        self._credentials = credentials
        self._queue_size = queue_size
        self._owner = owner
        self._nursery: trio.Nursery | None = None
        self._scopes: dict[str, trio.CancelScope] = {}
        self._sole: Link | None = None
        self._ignores_drain = False

    # -- for producers -----------------------------------------------------------------------

    def add(self, routes: Routes) -> None:
        self.carried.append(routes)
        for seed in self._seeds:
            routes.to(seed)
        self._settle()

    def remove(self, routes: Routes) -> None:
        self.carried.remove(routes)
        self._settle()

    def seeds(self, addresses: Iterable[str]) -> None:
        self._seeds = tuple(addresses)
        for routes in self.carried:
            for address in self._seeds:
                routes.to(address)
        self._settle()

    def assign(self, routes: Routes, owners: Iterable[str], epoch: int, origin: str) -> None:
        """Set the owners of an outbox's partitions, by address (``""``: no owner)."""
        routes.assign(list(owners), epoch, origin)
        self._settle()
        self.wake()

    @property
    def awake(self) -> bool:
        """True if the only link will send new events soon anyway."""
        return self._sole is not None and self._sole.awake

    @property
    def connected(self) -> bool:
        return any(link.connected for link in self.links.values())

    @property
    def unreached(self) -> list[str]:
        """The addresses of owners of partitions that are not connected now."""
        return [
            address
            for address, link in self.links.items()
            if not link.connected and any(route.lanes for route in link.routes)
        ]

    def is_near(self, route: NodeRoute | None) -> bool:
        """Return True if the node of a route may be connected soon."""
        link = None if route is None else self.links.get(route.address)
        return link is not None and link.away < _MOMENT

    @property
    def stranger(self) -> str:
        """The reason why a peer seems not to be a node; empty if none does."""
        return next((s for link in self.links.values() if (s := link.answers.stranger)), "")

    @property
    def last_drain(self) -> str:
        """Which node that events are to go to takes none, and why, as it said last; or empty."""
        reasons = (
            f"{at} takes no more: {link.last_drain}"
            for at, link in self.links.items()
            if link.last_drain and any(route.lanes for route in link.routes)
        )
        return next(reasons, "")

    def send_soon(self) -> None:
        """Send a new event, at once if nothing else is being sent."""
        if self._sole is not None:
            self._sole.send_soon()
            return
        for link in self.links.values():
            if any(route.sendable.events for route in link.routes):
                link.send_soon()

    def wake(self) -> None:
        for link in self.links.values():
            link.wake()

    def hurry(self) -> None:
        """Send waiting events without gathering more, and ask for verdicts."""
        for link in self.links.values():
            link.hurry()

    async def finish(self) -> None:
        """Announce to the nodes that no more events will come on any stream."""
        for link in self.links.values():
            link.finish()
        for link in list(self.links.values()):
            await link.wait_quiet()

    def ignore_drain(self) -> None:
        self._ignores_drain = True
        for link in self.links.values():
            link.ignores_drain = True
            link.wake()

    async def wait_taken(self) -> None:
        """Wait until the nodes have taken what was sent, so that closing loses none of it."""
        async with trio.open_nursery() as nursery:
            for link in self.links.values():
                nursery.start_soon(link.wait_taken)

    # -- life --------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry until cancelled; events without a verdict stay in the outboxes.

        Raises ConfigError for a seed that is not an address.
        """
        for seed in self._seeds:
            host_and_port(seed)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for address, link in self.links.items():
                self._start(address, link)
            self._settle()
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None  # a task may take one more step during cancellation

    def _start(self, address: str, link: Link) -> None:
        assert self._nursery is not None
        scope = self._scopes[address] = trio.CancelScope()

        async def carry() -> None:
            with scope:
                await link.run()

        self._nursery.start_soon(carry)

    def take_news(self) -> None:
        for routes in self.carried:
            if routes.regrouped:
                self._settle()
                break
        self._owner.take_news()

    def take_loss(self, link: Link) -> None:
        """Dial other nodes that may know the new owners of a lost peer's partitions."""
        for route in link.routes:
            for node in route.routes.nodes:
                route.routes.to(node)
        self._settle()
        self._owner.take_news()

    def _settle(self) -> None:
        """Open and close links, to have exactly those that the outboxes' routes need."""
        wanted: dict[str, list[NodeRoute]] = {}
        for routes in self.carried:
            routes.regrouped = False
            for route in list(routes.by_address.values()):
                if self._is_dead(route):
                    routes.drop(route)
                    continue
                wanted.setdefault(route.address, []).append(route)
                link = self.links.get(route.address)
                if link is None:
                    link = self.links[route.address] = Link(
                        route.address,
                        credentials=self._credentials,
                        queue_size=self._queue_size,
                        emitter=self,
                    )
                    link.ignores_drain = self._ignores_drain
                    if self._nursery is not None:
                        self._start(route.address, link)
                if route not in link.routes:
                    link.add(route)
        for address, link in list(self.links.items()):
            for route in [route for route in link.routes if route not in wanted.get(address, ())]:
                link.remove(route)
            if not link.routes:
                del self.links[address]
                scope = self._scopes.pop(address, None)
                if scope is not None:
                    scope.cancel()
        for link in self.links.values():
            if any(route.asks for route in link.routes):
                link.wake()  # another link has brought it lanes
        carrying = [
            link for link in self.links.values() if any(route.lanes for route in link.routes)
        ]
        self._sole = carrying[0] if len(carrying) == 1 else None

    def _is_dead(self, route: NodeRoute) -> bool:
        """Return True if the route leads to a node that has left the cluster."""
        link = self.links.get(route.address)
        away = link is not None and not link.connected
        nodes = route.routes.nodes
        known = not {route.address, route.alias}.isdisjoint(nodes) or route.address in self._seeds
        return away and not route.lanes and bool(nodes) and not known
