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

from s4node.net.egress.leg import Leg
from s4node.net.egress.link import Link
from s4node.net.egress.outbox import Outbox
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
        self.outboxes: list[Outbox] = []
        self._seeds = tuple(seeds)
        self._queue_size = queue_size
        self._on_news = on_news
        self._nursery: trio.Nursery | None = None
        self._scopes: dict[str, trio.CancelScope] = {}
        self._sole: Link | None = None
        self._insists = False

    # -- what producers call -----------------------------------------------------------------

    def add(self, outbox: Outbox) -> None:
        """Carry this outbox, too."""
        self.outboxes.append(outbox)
        for seed in self._seeds:
            outbox.leg(seed)
        self._settle()

    def remove(self, outbox: Outbox) -> None:
        """Carry this outbox no longer."""
        self.outboxes.remove(outbox)
        self._settle()

    def seeds(self, addresses: Iterable[str]) -> None:
        """Nodes of the cluster are at these addresses now."""
        self._seeds = tuple(addresses)
        for outbox in self.outboxes:
            for address in self._seeds:
                outbox.leg(address)
        self._settle()

    def assign(self, outbox: Outbox, owners: Iterable[str], epoch: int) -> None:
        """The partitions of ``outbox`` belong to these addresses (``""``: to nobody)."""
        outbox.assign(list(owners), epoch)
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
            if any(leg.sendable for leg in link.legs):
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
        if any(outbox.regrouped for outbox in self.outboxes):
            self._settle()
        self._on_news()

    def _lost(self, link: Link) -> None:
        """A peer is gone: ask whoever else may know who owns its partitions now."""
        for leg in link.legs:
            for node in leg.outbox.nodes:
                leg.outbox.leg(node)
        self._settle()
        self._on_news()

    def _settle(self) -> None:
        """Have exactly the links that the outboxes' legs need."""
        wanted: dict[str, list[Leg]] = {}
        for outbox in self.outboxes:
            outbox.regrouped = False
            for leg in list(outbox.legs.values()):
                if self._is_dead(outbox, leg.address, bool(leg.lanes)):
                    outbox.drop(leg)
                    continue
                wanted.setdefault(leg.address, []).append(leg)
                link = self.links.get(leg.address)
                if link is None:
                    link = self.links[leg.address] = Link(
                        leg.address,
                        queue_size=self._queue_size,
                        on_news=self._heard,
                        on_lost=self._lost,
                    )
                    link.insists = self._insists
                    if self._nursery is not None:
                        self._start(leg.address, link)
                if leg not in link.legs:
                    link.add(leg)
        for address, link in list(self.links.items()):
            for leg in [leg for leg in link.legs if leg not in wanted.get(address, ())]:
                link.remove(leg)
            if not link.legs:
                del self.links[address]
                scope = self._scopes.pop(address, None)
                if scope is not None:
                    scope.cancel()
        for link in self.links.values():
            if any(leg.asks for leg in link.legs):
                link.wake()  # lanes have come to it by a word that came over another
        carrying = [link for link in self.links.values() if any(leg.lanes for leg in link.legs)]
        self._sole = carrying[0] if len(carrying) == 1 else None

    def _is_dead(self, outbox: Outbox, address: str, needed: bool) -> bool:
        """Whether the leg leads to a node that has left the cluster."""
        link = self.links.get(address)
        away = link is not None and not link.connected
        leg = outbox.legs[address]
        known = address in outbox.nodes or leg.alias in outbox.nodes
        return (
            away
            and not needed
            and bool(outbox.nodes)
            and not known
            and (address not in self._seeds)
        )
