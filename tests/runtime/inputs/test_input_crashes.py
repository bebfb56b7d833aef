"""Real processes over a log: killed they replay and skip nothing, stopped they replay nothing."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from harness import s4_process, until
from log_bench import append, bench

pytestmark = pytest.mark.long


@pytest.mark.parametrize("app", ["tasks", "elements"])
async def test_a_killed_container_goes_on_at_its_last_commit_and_skips_nothing(
    tmp_path: Path, app: str
) -> None:
    dice = random.Random(7)
    total = 6000
    async with bench(tmp_path) as it:
        slow = {"task.commit.ms": "20", "s4.cluster.partitions": "2", "s4.app.slow": "0.0003"}
        arguments = it.arguments(app, **slow)
        committed: dict[int, int] = {}
        for life in range(4):
            start = life * total // 4
            before = len(it.seen)
            async with s4_process(*arguments, cwd=tmp_path) as process:
                await append(it.log, start, start + total // 4)
                wanted = before + dice.randrange(200, 1200)
                await until(lambda: len(it.seen) >= wanted)  # noqa: B023 - it is this turn's
                await process.kill()
            now = it.offsets(app)
            assert all(at >= committed.get(partition, 0) for partition, at in now.items())
            committed = now
        assert sum(committed.values()) > 0  # it did not always begin anew
        async with s4_process(*arguments, cwd=tmp_path) as process:
            await until(lambda: len({each[1:] for each in it.seen}) == total)
            process.signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert it.offsets(app) == {0: total // 2, 1: total // 2}
        lives = Counter(each[0] for each in it.seen)
        assert len(lives) == 5
        for pid in lives:  # no process sees an event twice, nor those of a place out of order
            mine = [each[1:] for each in it.seen if each[0] == pid]
            assert len(set(mine)) == len(mine)
            places: dict[tuple[str, int], list[int]] = {}
            for where, number in mine:
                of_log = int(number) % 2 if app == "elements" else 0  # it was appended to that one
                places.setdefault((where, of_log), []).append(int(number))
            assert all(numbers == sorted(numbers) for numbers in places.values())


@pytest.mark.parametrize("app", ["tasks", "elements"])
async def test_a_container_that_is_stopped_in_order_replays_nothing_when_it_is_started_again(
    tmp_path: Path, app: str
) -> None:
    total, lives = 50_000, 5
    async with bench(tmp_path) as it:
        seldom = "0" if app == "tasks" else "500"  # elements send each other what they have read
        arguments = it.arguments(app, **{"task.commit.ms": seldom, "s4.cluster.partitions": "4"})
        for life in range(lives):  # each has events of its own, however much one before it took
            await append(it.log, life * total // lives, (life + 1) * total // lives)
            before = len(it.seen)
            async with s4_process(*arguments, cwd=tmp_path) as process:
                await until(lambda: len(it.seen) > before)  # noqa: B023 - it is this turn's
                process.signal(signal.SIGTERM)
                assert await process.wait() == 0
        async with s4_process(*arguments, cwd=tmp_path) as process:
            await until(lambda: len(it.seen) >= total)
            process.signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert len({each[0] for each in it.seen}) >= lives
        assert len(it.seen) == len({each[1:] for each in it.seen}) == total
