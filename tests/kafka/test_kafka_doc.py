"""docs/kafka.md: its app and its command, over a broker."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra kafka: tools/install kafka")

from harness import ROOT, s4_process, until
from kafka_broker import lacking, running_broker

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]

PAGE = (ROOT / "docs" / "kafka.md").read_text()


READS, WRITES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(COMMAND,) = re.findall(r"\$ (s4 run orders\.py.*?)\n```", PAGE, re.DOTALL)


async def test_the_apps_sum_the_orders_of_a_topic_by_minute(tmp_path: Path) -> None:
    with running_broker(tmp_path / "kafka") as broker:
        broker.create("shop.orders", 2)
        broker.create("totals", 2)
        producer = broker.producer()
        for second, user, amount in [(0, "ann", 3), (30, "bob", 1), (59, "ann", 4), (200, "x", 0)]:
            value = f'{{"user": "{user}", "amount": {amount}, "city": "Riga"}}'
            for partition in (0, 1) if user == "x" else (second % 2,):
                at = 1_700_000_040_000 + 1000 * second
                producer.produce("shop.orders", value, user, partition, timestamp=at)
        assert producer.flush(30) == 0
        _, *arguments = shlex.split(
            COMMAND.replace("\\\n", " ").replace("localhost:9092", broker.address)
        )
        arguments += ["--listen", "tcp://127.0.0.1:0", "-p", "s4.state.folder=state"]
        (tmp_path / "orders.py").write_text(READS)
        async with s4_process(*arguments, cwd=tmp_path) as process:
            await until(lambda: len(process.stdout) >= 2)
            found = {line for line in process.stdout if line.startswith(("ann", "bob"))}
            assert found == {"ann 1700000040 7", "bob 1700000040 1"}
        (tmp_path / "orders.py").write_text(WRITES)
        arguments += ["-p", "s4.state.folder=other", "-p", "streams.totals.record.time=at"]
        async with s4_process(*arguments, cwd=tmp_path):
            await until(lambda: len(broker.records("totals")) == 2, "both are there", seconds=60)
        records = broker.records("totals")
        assert {each.key(): json.loads(each.value())["amount"] for each in records} == {
            b"ann": 7,
            b"bob": 1,
        }
        assert {each.timestamp()[1] for each in records} == {1_700_000_040_000}
