"""Requests that are repeated until they are answered count once, whatever ends meanwhile."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import urllib.error
from pathlib import Path

import pytest
import trio
from harness import until_told
from monitored import Monitored, monitored, told
from shared_apps import COUNTER

pytestmark = [pytest.mark.slow, pytest.mark.long]

DURABLE = ("-p", "s4.stream.clicks.grade=durable")
KILLS = int(os.environ.get("KILLS", "6"))
EACH = 3  # events of a request


async def test_each_request_that_is_repeated_through_kills_and_a_repartition_counts_once(
    tmp_path: Path,
) -> None:
    async with monitored(tmp_path) as one, monitored(tmp_path, "two") as two:
        assert (await one.deploy("--partitions", "3", *DURABLE, source=COUNTER))[0] == 0
        await one.ready()
        await two.ready()
        nodes = (one, two)
        answered: list[int] = []
        repeated = 0
        over = False

        async def post(key: int) -> None:
            """Post the events of a key until there is an answer."""
            nonlocal repeated
            events = [{"user": f"{key}-{number}"} for number in range(EACH)]
            tries = 0
            while True:
                node = nodes[(key + tries) % 2]
                tries += 1
                repeated += tries > 1
                with trio.move_on_after(
                    0.5 if tries % 3 == 1 else 10
                ):  # it may be taken all the same
                    try:
                        url = f"{node.url}/streams/clicks"
                        answer = await told(url, events, Idempotency_Key=str(key))
                    except (urllib.error.URLError, ConnectionError):
                        continue
                    if answer.status == 200:
                        answered.append(key)
                        return
                    assert answer.status in (429, 503, 504), answer

        async def post_on(first: int) -> None:
            key = first
            while not over:
                await post(key)
                key += 4

        async with trio.open_nursery() as nursery:
            for first in range(4):
                nursery.start_soon(post_on, first)
            for number in range(KILLS):
                pid = await until_told(lambda: pid_on(nodes[number % 2]), bool)  # noqa: B023
                known = len(answered)
                os.kill(pid, signal.SIGKILL)
                await until_told(lambda: anew(answered), lambda now: len(now) > known + 4)  # noqa: B023
            over = True
        for key in answered[:5]:
            await post(key)
        status, errors = await one.s4("repartition", "counter", "5")
        assert status == 0, errors
        await one.ready()
        for key in {*answered[:20], *answered[-20:]}:
            await post(key)
        assert repeated
        counts = await counts_of(one)
        assert counts.keys() == {f"{key}-{n}" for key in set(answered) for n in range(EACH)}
        assert set(counts.values()) == {1}


async def test_requests_count_once_if_the_node_that_serves_them_is_killed(tmp_path: Path) -> None:
    async with monitored(tmp_path, "two") as two:
        over, answered, repeated = False, list[int](), 0
        nodes: list[Monitored] = [two, two]

        async def post_on(first: int) -> None:
            nonlocal repeated
            for key in itertools.count(first, 4):
                if over:
                    return
                events = [{"user": f"{key}-{number}"} for number in range(EACH)]
                for tries in itertools.count(key):
                    repeated += tries > key
                    with trio.move_on_after(10):
                        try:
                            url = f"{nodes[tries % 2].url}/streams/clicks"
                            answer = await told(url, events, Idempotency_Key=str(key))
                        except (OSError, http.client.HTTPException):
                            continue
                        if answer.status == 200:
                            answered.append(key)
                            break
                        assert answer.status in (404, 429, 503, 504), answer

        status, errors = await two.deploy("--partitions", "3", *DURABLE, source=COUNTER)
        assert status == 0, errors
        async with trio.open_nursery() as nursery:
            for life in range(max(2, KILLS // 4)):
                async with monitored(tmp_path) as one:
                    await one.ready()
                    await until_told(lambda: one.owned_by("one"), bool)
                    nodes[0] = one
                    if not life:
                        for first in range(4):
                            nursery.start_soon(post_on, first)
                    known = len(answered)
                    await until_told(lambda: anew(answered), lambda now: len(now) > known + 9)  # noqa: B023
                    one.process.signal(signal.SIGKILL)
                    await one.process.wait()
                known = len(answered)
                await until_told(lambda: anew(answered), lambda now: len(now) > known + 4)  # noqa: B023
            over = True
        await two.ready()
        assert repeated
        counts = await counts_of(two)
        assert counts.keys() == {f"{key}-{n}" for key in set(answered) for n in range(EACH)}
        assert set(counts.values()) == {1}


async def anew(found: list[int]) -> list[int]:
    return found


async def pid_on(node: Monitored) -> int:
    """The process of the app on a node; 0 if it is not ready."""
    status, text = await node.get("/status")
    if status != 200:
        return 0
    for each in json.loads(text)[0]["nodes"]:
        if each["name"] == node.name:
            for container in each["containers"]:
                if container["address"]:
                    return int(container["pid"])
    return 0


async def counts_of(node: Monitored) -> dict[str, int]:
    found: dict[str, int] = {}
    after = ""
    while True:
        page = await told(f"{node.url}/state/counter/Count?limit=1000&after={after}")
        assert page.status == 200
        found |= {each["key"]: each["value"]["clicks"] for each in page.json["keys"]}
        after = page.json["after"]
        if not after:
            return found
