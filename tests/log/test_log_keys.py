"""Keys of a stream of a log: the same types for any number of partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from log_nodes import log_at, log_node

from s4node import Client, Event, GenericEvent


class Row(Event):
    k: str | float
    n: int = 0


class Text(Event):
    k: str


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(
    ("types", "event", "why"),
    [
        (Text, Text("k" * 10_000), "a key of 10000 characters"),
        (Row, Row(1.5), "returned 1.5"),
        (GenericEvent, GenericEvent(k=True), "returned True"),
        (GenericEvent, GenericEvent(n=1), "no attribute 'k'"),
    ],
)
async def test_what_is_no_key_is_refused_for_any_number_of_partitions(
    tmp_path: Path, partitions: int, types: Any, event: Any, why: str
) -> None:
    async with log_node(tmp_path) as node:
        async with log_at(node.address) as log:
            await log.create("rows", partitions, key="k")
        async with Client(node.address) as client:
            rows = await client.stream("rows", types=types)
            await rows.send(event)
            (refused,) = await rows.flush()
            assert why in refused.reason


@pytest.mark.parametrize("partitions", [1, 4])
async def test_so_are_the_keys_of_json_objects(tmp_path: Path, partitions: int) -> None:
    async with log_node(tmp_path) as node:
        async with log_at(node.address) as log:
            await log.create("rows", partitions, key="k")
        async with Client(node.address) as client:
            rows = await client.stream("rows")
            rows.read_as()
            await rows.send_many([b'{"k": 1.5}', b'{"k": "good"}'])
            (refused,) = await rows.flush()
            assert "returned 1.5" in refused.reason
