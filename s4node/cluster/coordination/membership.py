"""The membership of a container: joins its app, and follows the assignment of partitions.

Rules
- The oldest living member computes the assignment and writes it over the version that it has read;
  if another was faster, it reads again. If it dies, the next oldest continues: there is no
  election.
- The first assignment waits until the expected number of members has joined, or for the gather
  time. So does an assignment by members that never saw a living owner: all containers have
  restarted.
- A member reports whole views, never differences; equal views are reported once.
- A member whose folder or URL does not have the state of the app gets no partitions: its tasks
  would start without their state.
- The next owner of a partition learns that it will come, and says when it is ready to take it over.
  Only then the member that has it owes it: it stops the partition first, and then hands it over. It
  owes no other one until the new owner has taken that over, for some seconds at most.
- The partitions of a dead owner stay without one for the time that its name is awaited. A member of
  this name gets them back.
- If members follow the state of others, the assignment names a standby for each partition.
- A member whose node is drained hands over all that it has, and gets nothing.
- Only the oldest member reads all others at each change; the others read what has changed.
- The address of a dead owner is not reported.
- While the coordination cannot be read or written, the last view holds and the step is retried: a
  full disk does not stop running tasks. Only the end of the session does.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
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
from s4node.cluster.coordination.entries import AppId, Group, MemberInfo
from s4node.cluster.coordination.follow import follow
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.coordination.view import View
from s4node.errors import BadVersion, CoordinationError, EntryExists, NoEntry, SessionLost
from s4node.logger import get_logger

if TYPE_CHECKING:
    from s4node.cluster.tree.contract import Session

log = get_logger("s4node.cluster")

GATHER_SECONDS = 10.0
TAKING_SECONDS = 10.0
"""How long a new owner that is slow holds up what its former owner is to hand over to others."""


class Membership:
    """One container's part in an app of ``partitions`` partitions.

    ``member`` must be unique among the app's living members, and peers reach it at ``address``. The
    first assignment waits for ``expected`` members, for at most ``gather_timeout`` seconds.
    ``state`` is the identity of the state that the member can reach. ``stay`` are the seconds for
    which a dead owner is awaited. A member that ``follows`` can be a standby, if possible of owners
    in another ``zone``. ``version`` is for status commands.
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
        stay: float = 0.0,
        state: str = "",
        zone: str = "",
        follows: bool = False,
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
            zone=zone,
            follows=follows,
        )
        self._expected = expected
        self._containers = containers
        self._gather_timeout = gather_timeout
        self._gather_until = 0.0
        self._stay = stay
        self._dead: dict[Key, float] = {}  # owners that are dead, and until when they are awaited
        self._to_hand_over: dict[int, Key] = {}  # to the next owner that was ready last
        self._in_transfer: dict[tuple[int, Key], float] = {}  # handed over; until when
        self._group: Group | None = None
        self._running: trio.CancelScope | None = None
        self._left = False
        self._nothing = View(0, ("",) * partitions, (0,) * partitions, frozenset(), ())
        self.view = self._nothing

    async def run(self, on_view: Callable[[View], None]) -> None:
        """Join, and call ``on_view`` with every new view until :meth:`leave`.

        ``on_view`` is called in the loop and must not block. The last view comes after leaving, and
        nothing is ``mine`` in it. Raises NameTaken if a member of this name lives,
        CoordinationError if one has another number of partitions, and SessionLost when the session
        has ended: others may then own what was ``mine``. A cancelled run leaves the member joined,
        for as long as its session lives.
        """
        joined = False
        with trio.CancelScope() as self._running:
            await self.registry.start_member(self.app, self._info)
            if joined := not self._left:
                self._gather_until = trio.current_time() + self._gather_timeout
                await self._check_partitions()
                await follow(
                    partial(self._step, on_view),
                    lambda why: log.warning(
                        "cannot follow the assignment", app=str(self.app), error=why
                    ),
                )
        if not joined:  # it left while it was joining
            await self.leave()
            return
        self._report(await self.registry.group(self.app), on_view, frozenset())

    async def leave(self) -> None:
        """Give up what is ``mine``, which goes to others at once, and end :meth:`run`.

        Stop processing first: others may start with these partitions at once. Does nothing if the
        member has left or the session is lost.
        """
        self._left = True
        try:
            await self.registry.leave_member(self.app, self._info.name)
            while True:  # the leaving member knows it first, so it assigns what it had
                group = await self.registry.group(self.app)
                if group.assignment is None or not await self._write_next(group):
                    break
        except SessionLost:
            return
        if self._running is not None:
            self._running.cancel()

    async def _check_partitions(self) -> None:
        """Make the younger of two members that disagree leave, with an error."""
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
        """Read the group, write the assignment if it is due, report the view, and wait for news."""
        base = Registry.path_of_app(self.app)
        seen = await self._session.change(base)
        group = await self.registry.group(self.app, self._group)
        if self._is_oldest(group):
            group = await self.registry.group(self.app)
        self._group = group
        deadline = self._wait_for_others(group)
        gathered = deadline == math.inf
        if gathered and self._is_oldest(group) and await self._write_next(group):
            return
        ready = await self._ready_to_take(group)
        self._to_hand_over |= ready  # a next owner may wait no more when a slow task has stopped
        self._report(group, on_view, frozenset(ready), gathered=gathered)
        now = trio.current_time()
        ends = *self._dead.values(), *self._in_transfer.values()
        with trio.move_on_at(min([deadline, *(end for end in ends if end > now)])):
            await self._session.wait_change(base, seen)

    def _is_oldest(self, group: Group) -> bool:
        return bool(group.members) and group.candidates[0].key == self._key

    @property
    def _key(self) -> Key:
        return self._session.id, self._info.name

    def _wait_for_others(self, group: Group) -> float:
        """Until when the first assignment waits; infinite if it need not."""
        assignment = group.assignment and group.assignment.value
        if has_living_owner(assignment, group.candidates):
            self._gather_until = -math.inf  # a spare that has seen an owner takes over at once
        gathered = len(group.members) >= self._expected
        if gathered or trio.current_time() >= self._gather_until:
            return math.inf
        return self._gather_until

    async def _write_next(self, group: Group) -> bool:
        """Write the assignment that follows from ``group``; returns False if it is unchanged."""
        before = group.assignment
        after = assign(
            self._info.partitions,
            self._eligible(group),
            before and before.value,
            self._containers,
            self._owners_expected_back(group),
            self._drained(group),
        )
        if before is None:
            after = msgspec.structs.replace(after, origin=tokens.fresh(16))
        elif after is before.value:
            return False
        with contextlib.suppress(BadVersion, EntryExists, NoEntry):  # another was faster
            await self.registry.write_assignment(self.app, after, before and before.version)
        return True

    def _owners_expected_back(self, group: Group) -> set[str]:
        alive = {member.key for member in group.candidates}
        assignment = group.assignment.value if group.assignment is not None else Assignment()
        dead = {owner.key for owner in assignment.owners} - alive
        names = {name for _, name in alive | dead}
        dead |= {("", name) for name in assignment.standbys if name and name not in names}
        now = trio.current_time()
        self._dead = {key: self._dead.get(key, now + self._stay) for key in dead}
        return {name for (_, name), end in self._dead.items() if end > now}

    def _drained(self, group: Group) -> set[Key]:
        return {
            (each.session, each.value.name)
            for each in group.members
            if each.value.node in group.drained
        }

    def _eligible(self, group: Group) -> list[Member]:
        """The members with our number of partitions that can reach the state of the app."""
        return [
            candidate
            for candidate, member in zip(group.candidates, group.members, strict=True)
            if member.value.partitions == self._info.partitions
            and member.value.state in ("", group.state)
        ]

    def _moves(self, group: Group) -> dict[int, Member]:
        """The partitions that owners should hand over, with the next owners."""
        members = self._eligible(group)
        if group.assignment is None or not members:
            return {}
        return moves(group.assignment.value, members, self._containers, self._drained(group))

    async def _ready_to_take(self, group: Group) -> dict[int, Key]:
        """Our partitions for which their next owners are ready, and these owners. There is none
        while another new owner takes over what we have handed over to it."""
        mine = self._owned(group.assignment.value)[0] if group.assignment is not None else ()
        next_owners = {p: member for p, member in self._moves(group).items() if p in mine}
        ready: set[tuple[int, Key]] = set()
        names = {member.name for member in next_owners.values()}
        for name in names.union(name for _, (_, name) in self._in_transfer):
            found = await self.registry.member(self.app, name)
            if found is not None:
                ready.update((index, (found.session, name)) for index in found.value.ready)
        now = trio.current_time()
        ends = self._in_transfer.items()
        self._in_transfer = {each: end for each, end in ends if each in ready and end > now}
        if self._in_transfer:
            return {}
        return {p: member.key for p, member in next_owners.items() if (p, member.key) in ready}

    async def take(self, partitions: Iterable[int]) -> None:
        """Say that we are ready to take over these of ``coming``, and no others."""
        ready = tuple(sorted(partitions))
        if ready == self._info.ready:
            return
        self._info = msgspec.structs.replace(self._info, ready=ready)

        async def write() -> bool:
            with contextlib.suppress(NoEntry):  # we have left
                await self.registry.set_member(self.app, self._info)
            return True

        await self._retry(write, "cannot say that it is ready for a partition")

    async def hand_over(self, partitions: Iterable[int]) -> None:
        """Hand over these of ``mine``, which are stopped, to their next owners.

        A partition comes back to us in a new epoch if it is not to be handed over any more, or its
        next owner was not ready.
        """
        known = [self._group]  # which nearly always is true, and reading takes several round trips
        await self._retry(partial(self._give, set(partitions), known), "cannot hand over")

    async def _retry(self, step: Callable[[], Awaitable[bool]], trouble: str) -> None:
        """Repeat a step on the coordination until it returns True; ``trouble`` is logged."""
        with trio.CancelScope() as done:

            async def once() -> None:
                if await step():
                    done.cancel()

            await follow(once, lambda why: log.warning(trouble, app=str(self.app), error=why))

    async def _give(self, given: set[int], known: list[Group | None]) -> bool:
        """Write the new owners of ``given``; returns False if another member was faster. The group
        in ``known`` is used if there is one, but only once."""
        group = (known.pop() if known else None) or await self.registry.group(self.app)
        before = group.assignment
        us = next((member for member in self._eligible(group) if member.key == self._key), None)
        if before is None or us is None:  # a leaving member gives up everything anyway
            return True
        moves, ready = self._moves(group), self._to_hand_over
        next_owners = {p: member for p, member in moves.items() if ready.get(p) == member.key}
        owners = before.value.owners
        to = {
            partition: next_owners.get(partition, us)
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
        end = trio.current_time() + TAKING_SECONDS
        given_away = ((p, member.key) for p, member in to.items() if member != us)
        self._in_transfer.update(dict.fromkeys(given_away, end))
        return True

    def _followed(self, assignment: Assignment) -> frozenset[int]:
        """The partitions of which this member is the standby."""
        named = enumerate(assignment.standbys)
        return frozenset(p for p, name in named if name == self._info.name)

    def _owned(self, assignment: Assignment) -> tuple[frozenset[int], frozenset[int]]:
        """The partitions of this member, and those of a former one of its name."""
        named = [p for p, owner in enumerate(assignment.owners) if owner.member == self._info.name]
        mine = frozenset(p for p in named if assignment.owners[p].key == self._key)
        return mine, frozenset(named) - mine

    def _report(
        self,
        group: Group,
        on_view: Callable[[View], None],
        to_hand_over: frozenset[int],
        *,
        gathered: bool = True,
    ) -> None:
        """Report ``group``; while members gather, a former assignment counts as none."""
        assignment = group.assignment.value if group.assignment else Assignment()
        if gathered and len(assignment.owners) == self._info.partitions:
            mine, former = self._owned(assignment)
            moves = self._moves(group).items()
            given = frozenset(p for p, member in moves if member.key == self._key)
            view = View(
                group.epoch,
                group.owners,
                group.epochs,
                mine,
                group.addresses,
                to_hand_over,
                former | given,
                self._followed(assignment) - mine,
                assignment.origin,
            )
        else:
            view = replace(self._nothing, members=group.addresses)
        if view != self.view:
            self.view = view
            on_view(view)
