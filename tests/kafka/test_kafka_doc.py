"""docs/kafka.md: its way from nothing to rows, over a broker."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import trio
from harness import ROOT, run_s4, s4_process
from kafka_broker import Broker, needs_broker

pytestmark = needs_broker

PAGE = (ROOT / "docs" / "kafka.md").read_text()


async def test_the_page_leads_from_nothing_to_rows(broker: Broker, tmp_path: Path) -> None:
    page = PAGE.replace("localhost:9092", broker.address)
    produce, app, consume = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (settings,) = re.findall(r"```properties\n(.*?)```", page, re.DOTALL)
    for name, text in ("produce.py", produce), ("orders.py", app), ("consume.py", consume):
        (tmp_path / name).write_text(text)
    (tmp_path / "orders.properties").write_text(settings)
    for topic in re.findall(r"\$ kafka-topics\.sh .* --topic (\S+)", page):
        broker.create(topic)
    await trio.run_process([sys.executable, "produce.py"], cwd=tmp_path)
    (run,) = re.findall(r"\$ s4 (run orders\.py.*) &\n", page)
    tail, shown = re.findall(r"\$ s4 (log tail totals.*)\n((?:\{.*\n)+)", page)[0]
    more = ("--listen", "tcp://127.0.0.1:0", "-p", "s4.state.folder=state")
    async with s4_process(*shlex.split(run), *more, cwd=tmp_path):
        tailed = await run_s4(*shlex.split(tail), cwd=tmp_path)
    assert tailed.stdout == shown
    records = broker.records("totals")
    assert {each.key() for each in records} == {b"ann", b"bob"}
    assert {each.timestamp()[1] for each in records} == {1_767_225_600_000}
    rows = zip(("ann", "bob"), tailed.stdout.splitlines(), strict=True)
    assert await consumed(tmp_path) == [f"{user} {row}" for user, row in rows]
    (orders,) = re.findall(r"\$ s4 (log tail orders.*)\n\{", page)
    shown = re.findall(r"log tail orders.*\n(\{.*\n)", page)[0]
    first = await run_s4(*shlex.split(orders), cwd=tmp_path)
    assert json.loads(first.stdout) == json.loads(shown)


async def consumed(folder: Path) -> list[str]:
    """The first lines of the page's consumer, which waits for more."""
    command = [sys.executable, "consume.py"]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(trio.run_process, command, cwd=folder, stdout=subprocess.PIPE, check=False)
        )
        text = ""
        while text.count("\n") < 2:
            text += (await process.stdout.receive_some()).decode()
        process.kill()
    return text.splitlines()


def test_the_app_of_the_page_is_the_file_that_it_names() -> None:
    assert (ROOT / "apps/orders/app.py").read_text() in PAGE
