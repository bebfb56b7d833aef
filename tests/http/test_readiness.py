"""When a node is ready, while partitions move and while commands change an app: real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import until_told
from monitored import COUNTER, monitored

pytestmark = [pytest.mark.slow, pytest.mark.long]

BROKEN = COUNTER.replace("lambda: 42)", "lambda: 42)\n        self.nothing()")
DURABLE = ("-p", "s4.stream.clicks.grade=durable")


async def test_a_node_that_joins_is_ready_once_it_has_its_share_and_the_others_stay_ready(
    tmp_path: Path,
) -> None:
    async with monitored(tmp_path) as one:
        assert (await one.deploy("--partitions", "16", *DURABLE))[0] == 0
        await one.ready()
        async with one.watched() as said, monitored(tmp_path, "two") as two:
            await two.ready()
            assert await two.owned_by("two") == 8
            # what moves later does not make it unready: drained, the first has its share taken over
            async with two.watched() as said_later:
                assert (await one.s4("drain", "one"))[0] == 0
                await until_told(lambda: two.owned_by("two"), lambda count: count == 16)
        assert said == said_later == {"ready\n"}


async def test_a_node_is_unready_while_a_command_has_stopped_its_app_and_not_while_it_prepares(
    tmp_path: Path,
) -> None:
    async with monitored(tmp_path) as node:
        assert (await node.deploy("--partitions", "3", *DURABLE))[0] == 0
        await node.ready()
        async with node.watched() as said:
            status, errors = await node.deploy(source=BROKEN)
        assert status == 2
        assert "self.nothing()" in errors
        assert said == {"ready\n"}
        async with node.watched() as said:
            status, errors = await node.s4("repartition", "counter", "2")
            assert status == 0, errors
            await node.ready()
        assert "app 'counter' is paused by a command that changes its state\n" in said
        assert "app 'counter' is starting\n" in said
