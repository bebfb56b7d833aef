"""A look at a cluster whose streams apps of others take, on a real folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.folder import FolderCoordination
from s4node.deploy.cluster_look import asking, of_cluster
from s4node.deploy.cluster_snapshot import StreamRow

WORDS = StreamRow("words", ["outside.lines"], ["east.count", "north.count"])
TOTALS = StreamRow("totals", ["east.count"], [])


@pytest.mark.parametrize(
    ("cluster", "seen"),
    [("outside", [WORDS]), ("north", [WORDS]), ("east", [TOTALS, WORDS]), ("south", [])],
)
async def test_a_cluster_shows_who_is_at_both_ends_of_its_streams(
    tmp_path: Path, cluster: str, seen: list[StreamRow]
) -> None:
    async with FolderCoordination(tmp_path).session("who looks") as session:
        registry = Registry(session)
        for row in (WORDS, TOTALS):
            for app in row.producers:
                await registry.add_stream_user(row.stream, "producers", AppId(*app.split(".")))
            for app in row.consumers:
                await registry.add_stream_user(row.stream, "consumers", AppId(*app.split(".")))
        assert (await of_cluster(registry, cluster, "", asking(None))).streams == seen
