"""The emitter: a process's connections to the nodes of one cluster.

Rules
- It begins with the seeds. Whom else to dial comes with the answers to hellos: a link to every node
  that owns a partition of some outbox.
- When a link is lost all nodes that were heard of are dialled, so that somebody tells who has
  taken the partitions over; what was not admitted goes there.
- A link that no outbox needs, to a node that is not there any more, is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from s4node.net.egress.link import Link
from s4node.net.egress.routes import NodeRoute, Routes
from s4node.net.transport.pair_socket import host_and_port


class Emitter:
    """Carries any number of outboxes to the cluster that the nodes at ``seeds`` belong to.

    ``on_news`` is called when a verdict or hello has been taken, when events have left the queues,
    and when a peer has come or gone.
    """

    def __init__(
        self,
        seeds: Iterable[str] = (),
        *,
        queue_size: int,
        on_news: Callable[[], None],
    ) -> None:
        self.links: dict[str, Link] = {}
        self.carried: list[Routes] = []
        self._seeds = tuple(seeds)
        self._queue_size = queue_size
        self._on_news = on_news
        self._nursery: trio.Nursery | None = None
        self._scopes: dict[str, trio.CancelScope] = {}
        self._sole: Link | None = None
        self._insists = False

    # -- what producers call -----------------------------------------------------------------

    def add(self, routes: Routes) -> None:
        """Carry the outbox of these routes, too."""
        self.carried.append(routes)
        for seed in self._seeds:
            routes.to(seed)
        self._settle()

    def remove(self, routes: Routes) -> None:
        """Carry that outbox no longer."""
        self.carried.remove(routes)
        self._settle()

    def seeds(self, addresses: Iterable[str]) -> None:
        """Nodes of the cluster are at these addresses now."""
        self._seeds = tuple(addresses)
        for routes in self.carried:
            for address in self._seeds:
                routes.to(address)
        self._settle()

    def assign(self, routes: Routes, owners: Iterable[str], epoch: int, origin: str) -> None:
        """The partitions of an outbox belong to these addresses (``""``: to nobody)."""
        routes.assign(list(owners), epoch, origin)
        self._settle()
        self.wake()

    @property
    def awake(self) -> bool:
        """Whether a link will send soon what has just been put, without being told."""
        if self._sole is not None:
            return self._sole.awake
        return False

    @property
    def connected(self) -> bool:
        """Whether any node is there now."""
        return any(link.connected for link in self.links.values())

    @property
    def stranger(self) -> str:
        """What a peer that seems to be no node has answered, in words; empty if none does."""
        return next((s for link in self.links.values() if (s := link.answers.stranger)), "")

    def send_soon(self) -> None:
        """There is an event to send: at once if all is quiet."""
        if self._sole is not None:
            self._sole.send_soon()
            return
        for link in self.links.values():
            if any(route.sendable.events for route in link.routes):
                link.send_soon()

    def wake(self) -> None:
        """There is something to send."""
        for link in self.links.values():
            link.wake()

    def hurry(self) -> None:
        """Send what waits without gathering more, and ask for verdicts."""
        for link in self.links.values():
            link.hurry()

    def finish(self) -> None:
        """Tell the nodes that nothing more will come on any stream."""
        for link in self.links.values():
            link.finish()

    def insist(self) -> None:
        """From now on send to nodes that drain, too."""
        self._insists = True
        for link in self.links.values():
            link.insists = True
            link.wake()

    async def wait_quiet(self) -> None:
        """Return once every frame that may leave has left, or its peer is gone."""
        for link in list(self.links.values()):
            await link.wait_quiet()

    # -- life --------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry until cancelled; what has no verdict then stays in the outboxes.

        Raises ConfigError if a seed is no address.
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
                self._nursery = None  # a task may yet take a step, and all is being cancelled

    def _start(self, address: str, link: Link) -> None:
        assert self._nursery is not None
        scope = self._scopes[address] = trio.CancelScope()

        async def carry() -> None:
            with scope:
                await link.run()

        self._nursery.start_soon(carry)

    def _heard(self) -> None:
        for routes in self.carried:
            if routes.regrouped:
                self._settle()
                break
        self._on_news()

    def _lost(self, link: Link) -> None:
        """A peer is gone: ask others that may know who owns its partitions now."""
        for route in link.routes:
            for node in route.routes.nodes:
                route.routes.to(node)
        self._settle()
        self._on_news()

    def _settle(self) -> None:
        """Have exactly the links that the outboxes' routes need."""
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
                        queue_size=self._queue_size,
                        on_news=self._heard,
                        on_lost=self._lost,
                    )
                    link.insists = self._insists
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
                link.wake()  # lanes have come to it by a word that came over another
        carrying = [
            link for link in self.links.values() if any(route.lanes for route in link.routes)
        ]
        self._sole = carrying[0] if len(carrying) == 1 else None

    def _is_dead(self, route: NodeRoute) -> bool:
        """Whether the route leads to a node that has left the cluster."""
        link = self.links.get(route.address)
        away = link is not None and not link.connected
        nodes = route.routes.nodes
        known = route.address in nodes or route.alias in nodes
        return (
            away
            and not route.lanes
            and bool(nodes)
            and not known
            and (route.address not in self._seeds)
        )
