"""A container among its peers: it joins, and follows who owns which partition.

Rules
- The oldest living member computes the assignment and writes it over the version that it has read;
  the slower one reads again. Should it die, the next oldest goes on: nobody is elected.
- The first assignment waits until the expected number of members is there, or for the gather time.
  First is also the one of members who never saw a living owner: all containers started anew.
- What is told is a whole view, never a difference; equal views are told once.
- A member whose folder or URL has not the state of the app gets no partition: its tasks would begin
  from nothing.
- Who has more than its share is told what it owes to others. It hands that over by itself, when it
  has stopped with it.
- An owner that no longer lives is nobody: its address is not told.
- While the coordination cannot be read or written the last view holds, and it is tried again: a
  full disk does not stop what runs. Only the end of the session does.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from s4node import tokens
from s4node.cluster.coordination.assignment import (
    Assignment,
    Key,
    Member,
    assign,
    handed_over,
    has_living_owner,
    moves,
)
from s4node.cluster.coordination.follow import follow
from s4node.cluster.coordination.registry import AppId, Group, MemberInfo, Registry
from s4node.cluster.coordination.view import View
from s4node.errors import BadVersion, CoordinationError, EntryExists, NoEntry, SessionLost
from s4node.logger import get_logger

if TYPE_CHECKING:
    from s4node.cluster.coordination.contract import Session

log = get_logger("s4node.cluster")

GATHER_SECONDS = 10.0


class Membership:
    """One container's part in an app of ``partitions`` partitions.

    ``member`` must be unique among the app's living members, ``address`` is where peers reach it,
    ``expected`` how many members the first assignment waits for, ``gather_timeout`` (seconds) for
    how long at most. ``state`` is the identity of the state that the member can reach. ``node`` and
    ``version`` are for those who look.
    """

    def __init__(
        self,
        session: Session,
        *,
        cluster: str,
        app: str,
        member: str,
        address: str,
        partitions: int,
        expected: int = 1,
        containers: int = 0,
        gather_timeout: float = GATHER_SECONDS,
        state: str = "",
        node: str = "",
        version: str = "",
    ) -> None:
        self.app = AppId(cluster, app)
        self.registry = Registry(session)
        self._session = session
        self._info = MemberInfo(
            name=member,
            node=node,
            host=socket.gethostname(),
            pid=os.getpid(),
            address=address,
            version=version,
            partitions=partitions,
            state=state,
        )
        self._expected = expected
        self._containers = containers
        self._gather_timeout = gather_timeout
        self._gather_until = 0.0
        self._running: trio.CancelScope | None = None
        self._left = False
        self._nothing = View(0, ("",) * partitions, (0,) * partitions, frozenset(), ())
        self.view = self._nothing

    async def run(self, on_view: Callable[[View], None]) -> None:
        """Join, and call ``on_view`` with every new view until :meth:`leave`.

        ``on_view`` is called in the loop and must not block. The last view comes after leaving, and
        in it nothing is ``mine``. Raises NameTaken where a member of this name lives,
        CoordinationError where one with another number of partitions does, and SessionLost when the
        session is over: whatever was ``mine`` may be others' by then. A run that is cancelled
        leaves the member joined, for as long as its session lives.
        """
        await self.registry.join_member(self.app, self._info)
        self._gather_until = trio.current_time() + self._gather_timeout
        if self._left:  # while it was joining
            await self.leave()
            return
        await self._check_partitions()
        with trio.CancelScope() as self._running:
            if not self._left:
                await follow(
                    partial(self._step, on_view),
                    lambda why: log.warning(
                        "cannot follow the assignment", app=str(self.app), error=why
                    ),
                )
        self._tell(await self.registry.group(self.app), on_view)

    async def leave(self) -> None:
        """Give up what is ``mine``, which goes to others at once, and end :meth:`run`.

        Stop processing first: from here on others may start with these partitions. Leaving again,
        or after the session was lost, does nothing.
        """
        self._left = True
        try:
            await self.registry.leave_member(self.app, self._info.name)
            while True:  # who leaves knows it first, so it shares out what it had
                group = await self.registry.group(self.app)
                if group.assignment is None or not await self._write_next(group):
                    break
        except SessionLost:
            return
        if self._running is not None:
            self._running.cancel()

    async def _check_partitions(self) -> None:
        """Of two that disagree the younger one goes, so that they agree on who is wrong."""
        mine = self._info
        for member in (await self.registry.group(self.app)).members:
            if member.session == self._session.id and member.value.name == mine.name:
                return
            if member.value.partitions != mine.partitions:
                await self.leave()
                other = member.value
                raise CoordinationError(
                    f"app {str(self.app)!r} runs with {other.partitions} partitions in "
                    f"{other.name!r} (process {other.pid} on {other.host}), and would have "
                    f"{mine.partitions} here; set s4.cluster.partitions = {other.partitions}, or "
                    f"stop all of its containers first"
                )

    async def _step(self, on_view: Callable[[View], None]) -> None:
        """See what is there, do what follows from it, tell it, and wait for news."""
        base = Registry.path_of_app(self.app)
        seen = await self._session.change(base)
        group = await self.registry.group(self.app)
        deadline = self._wait_for_others(group)
        gathered = deadline == math.inf
        if gathered and self._is_oldest(group) and await self._write_next(group):
            return
        self._tell(group, on_view, gathered=gathered)
        with trio.move_on_at(deadline):
            await self._session.wait_change(base, seen)

    def _is_oldest(self, group: Group) -> bool:
        return bool(group.members) and group.candidates[0].key == self._key

    @property
    def _key(self) -> Key:
        return self._session.id, self._info.name

    def _wait_for_others(self, group: Group) -> float:
        """Until when the first assignment has to wait; infinite where it has not."""
        assignment = group.assignment and group.assignment.value
        if has_living_owner(assignment, group.candidates):
            self._gather_until = -math.inf  # a spare that has seen an owner takes over at once
        gathered = len(group.members) >= self._expected
        if gathered or trio.current_time() >= self._gather_until:
            return math.inf
        return self._gather_until

    async def _write_next(self, group: Group) -> bool:
        """Write what follows from ``group``; False where it stands already."""
        before = group.assignment
        members = self._equals(group)
        after = assign(self._info.partitions, members, before and before.value, self._containers)
        if before is None:
            after = msgspec.structs.replace(after, origin=tokens.fresh(16))
        elif after is before.value:
            return False
        with contextlib.suppress(BadVersion, EntryExists, NoEntry):  # read again, and see
            await self.registry.write_assignment(self.app, after, before and before.version)
        return True

    def _equals(self, group: Group) -> list[Member]:
        """The members that have as many partitions as we, and can reach the state of the app."""
        return [
            candidate
            for candidate, member in zip(group.candidates, group.members, strict=True)
            if member.value.partitions == self._info.partitions
            and member.value.state in ("", group.state)
        ]

    def _owed(self, group: Group) -> dict[int, Member]:
        """Who is to have which partition instead of its owner."""
        members = self._equals(group)
        if group.assignment is None or not members:
            return {}
        return moves(group.assignment.value, members, self._containers)

    async def hand_over(self, partitions: Iterable[int]) -> None:
        """Let others have these of ``mine``, which have been stopped with: those whom they are owed
        to by now, or ourselves anew where nobody is."""
        given = set(partitions)
        with trio.CancelScope() as done:

            async def step() -> None:
                if await self._give(given):
                    done.cancel()

            await follow(
                step,
                lambda why: log.warning("cannot hand over", app=str(self.app), error=why),
            )

    async def _give(self, given: set[int]) -> bool:
        """Write who has what of ``given`` from here on; False if somebody was faster."""
        group = await self.registry.group(self.app)
        before = group.assignment
        us = next((member for member in self._equals(group) if member.key == self._key), None)
        if before is None or us is None:  # who leaves gives up everything
            return True
        heirs = self._owed(group)
        owners = before.value.owners
        to = {
            partition: heirs.get(partition, us)
            for partition in given
            if owners[partition].key == self._key
        }
        if not to:
            return True
        try:
            after = handed_over(before.value, to)
            await self.registry.write_assignment(self.app, after, before.version)
        except (BadVersion, EntryExists, NoEntry):
            return False
        return True

    def _tell(
        self, group: Group, on_view: Callable[[View], None], *, gathered: bool = True
    ) -> None:
        """Tell ``group``; while members gather, what an earlier life of the app left is nothing."""
        assignment = group.assignment.value if group.assignment else Assignment()
        if gathered and len(assignment.owners) == self._info.partitions:
            owners = enumerate(assignment.owners)
            mine = frozenset(index for index, owner in owners if owner.key == self._key)
            owed = mine & self._owed(group).keys()
            view = View(
                group.epoch,
                group.owners,
                group.epochs,
                mine,
                group.addresses,
                owed,
                assignment.origin,
            )
        else:
            view = replace(self._nothing, members=group.addresses)
        if view != self.view:
            self.view = view
            on_view(view)
