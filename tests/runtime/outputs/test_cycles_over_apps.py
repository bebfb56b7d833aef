"""Apps of which each consumes what the other puts: the cycle is named before it can fill up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from harness import ANY_PORT, plain_errors, until
from shared_apps import Click, Forward, OnePE
from structlog.testing import capture_logs

from s4node import App, Config, Container
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.folder import FolderCoordination
from s4node.deploy.cluster_look import asking, of_cluster


async def test_the_logs_of_all_apps_and_the_status_name_a_cycle_over_apps(tmp_path: Path) -> None:
    coordination = FolderCoordination(tmp_path)
    path = "default.one -> totwo -> default.two -> toone -> default.one -> totwo"
    with capture_logs() as logs:
        async with (
            member(coordination, passing_on("one", "toone", "totwo")),
            member(coordination, passing_on("two", "totwo", "toone")),
            coordination.session("status") as session,
        ):
            await until(lambda: sorted(log["app"] for log in logs if "path" in log) == APPS)
            shown = await of_cluster(Registry(session), "default", "folder", asking(None))
    assert {log["path"] for log in logs if "path" in log} == {path}
    assert shown.cycles == [path]


# -- set-up ---------------------------------------------------------------------------------------

APPS = ["one", "two"]


def passing_on(name: str, stream: str, to: str) -> App:
    app = OnePE(Forward, stream, name=name)
    app.pe.out = app.create_output_stream(to, key="user", types=Click)
    return app


@asynccontextmanager
async def member(coordination: FolderCoordination, app: App) -> AsyncIterator[None]:
    """Run the only member of an app."""
    with plain_errors():
        async with coordination.session(app.name) as session, trio.open_nursery() as nursery:
            config = Config.from_values({"s4.listener.address": ANY_PORT, "s4.watchdog.ms": "0"})
            enrolment = Enrolment(session, "default", app.name, "n", 1)
            container = Container(app, config, node="n", enrolment=enrolment)
            nursery.start_soon(container.run)
            await container.ready.wait()
            yield
            container.stop()
