"""Containers report the cuts of their tasks, however late they learn of a savepoint."""

from __future__ import annotations

from pathlib import Path

import trio
from harness import until_told

from s4node import Config
from s4node.cluster.coordination.state_coordination import StateCoordination
from s4node.net.ingress.connection import Waker
from s4node.offsets.cuts import CutReport, Cuts
from s4node.runtime.commit.retries import Retries
from s4node.runtime.commit.savepoint_requests import SavepointRequests
from s4node.state.job import identity_of


async def test_a_cut_that_a_message_has_asked_for_before_the_request_was_seen_is_reported(
    tmp_path: Path,
) -> None:
    config, cut = Config.from_values({}), CutReport("Partition 0", fence=1, commit=7)
    state = identity_of(tmp_path, None)
    retries = Retries(1.0, trio.Event())
    async with (
        StateCoordination(tmp_path, config).registry("command") as registry,
        trio.open_nursery() as nursery,
    ):
        names = {0: "Partition 0"}
        requests = SavepointRequests(
            tmp_path, None, config, names, retries, Cuts(), NoInputs(), Waker()
        )
        await registry.job.request_savepoint(state, 3)
        await requests.report_cut(3, cut)
        nursery.start_soon(requests.run)
        await until_told(lambda: registry.job.cuts(state, 3), bool)
        assert await registry.job.cuts(state, 3) == {"Partition 0": cut}
        nursery.cancel_scope.cancel()


class NoInputs:
    """A container has no fast inputs."""

    undrained: dict[str, int] = {}  # noqa: RUF012

    def __bool__(self) -> bool:
        return False

    def hold(self, now: float) -> None:
        """Nothing is held."""

    def held_seconds(self, now: float) -> float:
        return 0.0

    def let_go(self, now: float) -> bool:
        return False
