"""Containers come and go while events flow: tasks move with what they keep, and all counts are
exact. Real processes, a real log, producers over sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from torture.exact_run import PARTITIONS, ExactTorture

from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.folder import FolderCoordination

pytestmark = [pytest.mark.slow, pytest.mark.long]


async def test_tasks_move_to_containers_that_come_and_counts_stay_exact(tmp_path: Path) -> None:
    run = Moving(tmp_path)
    with trio.fail_after(150):
        await run.run()
    assert run.shares == [[4], [2, 2], [1, 1, 1, 1], [2, 2]]
    assert run.complaints == []
    assert run.total > 2000


# -- set-up ---------------------------------------------------------------------------------------


class Moving(ExactTorture):
    """One container at first, then two, then four, then two again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 1, kills=0, hits=0, say=print)
        self.first = 1
        self.shares: list[list[int]] = []

    async def _torment_all(self) -> None:
        coordination = FolderCoordination(self.folder / "cluster", session_timeout=5)
        async with coordination.session("spectator") as session:
            self.registry = Registry(session)
            await self._shared([PARTITIONS])
            await self._start("exact", self._name("exact"))
            await self._shared([2, 2])
            for _ in range(2):
                await self._start("exact", self._name("exact"))
            await self._shared([1, 1, 1, 1])
            for member in self._in("running")[:2]:
                await self._stop(member)
            await self._shared([2, 2])

    async def _shared(self, expected: list[int]) -> None:
        """Wait until the members have so many partitions each."""

        async def look() -> bool:
            group = await self.registry.group(AppId("default", "exact"))
            if group.assignment is None:  # the first container is starting
                return False
            owners = [owner.member for owner in group.assignment.value.owners]
            return sorted(map(owners.count, set(owners))) == expected

        done = await self._counts()
        while not await look():
            await trio.sleep(0.05)
        before = sum(done["done"])
        while sum((await self._counts())["done"]) < before + 500:  # events flow
            pass
        self.shares.append(expected)
