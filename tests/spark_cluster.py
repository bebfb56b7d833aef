"""A standalone cluster of Spark with two workers, and a log; each has a machine of its own.

``python -m spark_cluster FOLDER``, in the namespaces of ``torture.machines.python_apart``, writes
rows in a batch, copies them with a query, runs an app over them with ``s4 bootstrap --master``, and
prints ``exact`` if everything came out once. The driver has a machine of its own, too, and is found
by its name. The file of the app is on its disk only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from harness import ROOT, environment
from spark_job import FILES, TOTAL
from spark_rows import Node, check_exact, until
from torture import machines
from torture.machines import Machine

from s4node.spark.java import java_home
from tests.saved_state import states_in_savepoint

SECONDS = 600
NAMES = ("log", "driver", "master", "worker-1", "worker-2")
MASTER = "spark://master:7077"
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"

APP = """
from s4node import App, Event, ProcessingElement


class Row(Event):
    user: str
    n: int


class User(ProcessingElement):
    count: int = 0
    total: int = 0

    def on_event(self, row: Row) -> None:
        self.count += 1
        self.total += row.n


class Rows(App):
    def on_init(self) -> None:
        self.create_input_stream("clicks", self.create_pe(User), key="user", types=Row)
"""


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk, self.shared = folder / "disk", folder / "shared"
        for each in (self.disk, self.shared, folder / "node"):
            each.mkdir()
        machines.switch_on()
        self.machines = {
            name: Machine(name, number, self.disk, self.shared)
            for number, name in enumerate(NAMES, 2)
        }
        hosts = folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{m.ip} {name}" for name, m in self.machines.items())]
        hosts.write_text("\n".join([*lines, ""]))
        for name in NAMES:
            self.run(name, "mount", "--bind", hosts, "/etc/hosts")

    def run(self, name: str, *command: str | Path, status: int = 0) -> str:
        """Run a command on a machine; returns what it says."""
        done = subprocess.run(
            self.machines[name].inside(*command),
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        said = done.stdout + done.stderr
        assert bool(done.returncode) == bool(status), f"{command}: {said[-3000:]}"
        return said

    @contextmanager
    def running(self, name: str, *command: str | Path) -> Iterator[Path]:
        """Run a part of Spark on a machine meanwhile; yields the file with what it says."""
        said = self.folder / f"{name}.said"
        with said.open("wb") as file:
            process = subprocess.Popen(
                self.machines[name].inside(SPARK_CLASS, *command),
                stdout=file,
                stderr=file,
                env={
                    **environment(),
                    "JAVA_HOME": str(java_home()),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
                },
                start_new_session=True,
            )
        try:
            yield said
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)

    @contextmanager
    def spark(self) -> Iterator[None]:
        """Run the master and the workers meanwhile."""
        parts = "org.apache.spark.deploy"
        places = ("--host", "master", "--port", "7077", "--webui-port", "0")
        with (
            self.running("master", f"{parts}.master.Master", *places) as master,
            self._worker("worker-1"),
            self._worker("worker-2"),
        ):
            until(
                lambda: master.read_text().count("Registering worker") == 2,
                "two workers are registered",
                SECONDS,
            )
            yield

    def _worker(self, name: str) -> object:
        room = self.folder / name
        given = ("--host", name, "--cores", "1", "--memory", "1g", "--work-dir", room)
        return self.running(name, "org.apache.spark.deploy.worker.Worker", *given, MASTER)

    def executors(self) -> list[int]:
        """How many applications have had executors on each worker."""
        return [len(list((self.folder / name).glob("app-*"))) for name in NAMES[-2:]]


def main(folder: Path) -> None:
    os.environ.pop("SPARK_LOCAL_IP", None)  # of a session of the tests, which is on one machine
    cluster = Cluster(folder)
    log = cluster.machines["log"]
    node = Node(folder / "node", log.ip, log.inside)
    node.settings = {"s4.access": "open"}
    node.start()
    try:
        for stream in ("clicks", "copy"):
            node.create(stream)
        with cluster.spark():
            job = (sys.executable, "-m", "tests.spark_job", MASTER, "copying")
            assert "done" in cluster.run(
                "driver", *job, node.address, "clicks", cluster.disk, str(FILES)
            )
            for stream in ("clicks", "copy"):
                check_exact(node.rows(stream), TOTAL)
            print("sink and source", cluster.executors())
            bootstrap(cluster, node)
            print("bootstrap", cluster.executors())
    finally:
        node.stop()
    print("exact", flush=True)


def bootstrap(cluster: Cluster, node: Node) -> None:
    """Run an app over the history on the cluster, and compare its state with the rows."""
    (cluster.folder / "rows.py").write_text(APP)
    cluster.run("driver", "cp", cluster.folder / "rows.py", cluster.disk)
    state = cluster.folder / "state"
    command = [sys.executable, "-m", "s4node", "bootstrap", cluster.disk / "rows.py"]
    command += ["--name", "history", "--master", MASTER]
    for setting in (
        "task.inputs=log.clicks",
        f"systems.log.address={node.address}",
        "systems.log.samza.offset.default=oldest",
        f"s4.state.folder={state}",
    ):
        command += ["-p", setting]
    told = cluster.run("driver", *command, "--work", cluster.disk / "stages", status=1)
    assert "does not reach" in told, told
    assert "name a folder that all executors reach with work (--work)" in told, told
    told = cluster.run("driver", *command, "--work", cluster.shared / "stages")
    assert "savepoint history of Rows: 4 tasks" in told, told
    assert not list((cluster.shared / "stages").iterdir()), "stages are left"

    expected: dict[str, dict[str, int]] = {}
    for row in node.rows("clicks"):
        user = expected.setdefault(row.user, {"count": 0, "total": 0})
        user["count"] += 1
        user["total"] += row.n
    found = states_in_savepoint(state, "history", "Rows")
    assert found == {"User": expected}, found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
