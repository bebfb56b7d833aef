"""A real ZooKeeper on 127.0.0.1, from the jars that Spark brings along."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from harness import DEADLINE, free_port

from s4node.cluster.tree.zookeeper import ZooKeeperCoordination

_JARS = ("zookeeper-*", "slf4j-api-*", "metrics-core-*", "snappy-java-*", "netty-*", "commons-io-*")
TICK_SECONDS = 0.5
LONGEST_SESSION = 60.0
SHORTEST_SESSION = 2 * TICK_SECONDS


def through_zookeeper(argument: str, timeout: float) -> ZooKeeperCoordination:
    """For the processes of the conformance kit."""
    return ZooKeeperCoordination(argument, session_timeout=timeout)


class ZooKeeperServer:
    """One server, which keeps its data in ``folder``; killed by :func:`zookeeper_server`."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, root: str) -> str:
        """The URL of a tree with this root."""
        return f"zk://127.0.0.1:{self.port}/{root}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._folder.mkdir(exist_ok=True)
        config = self._folder / "zoo.cfg"
        config.write_text(
            f"tickTime={int(TICK_SECONDS * 1000)}\n"
            f"dataDir={self._folder}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n"
            f"maxSessionTimeout={int(LONGEST_SESSION * 1000)}\n"
        )
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_java(), "-cp", _class_path(), _MAIN, str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 3 * DEADLINE
        while not self._answers():
            said = (self._folder / "log").read_text()
            assert self._process.poll() is None, f"ZooKeeper has ended: {said}"
            assert time.monotonic() < deadline, f"ZooKeeper does not answer: {said}"
            time.sleep(0.05)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as end:
            end.sendall(b"srvr")
            return b"Mode:" in end.recv(4096)
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def wipe(self) -> None:
        """Remove what it has kept, while it does not run."""
        shutil.rmtree(self._folder)

    def kill(self) -> None:
        """kill -9, and wait until it is gone; may be called twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


def _java() -> list[str]:
    from s4node.spark.java import java_home

    java = str(java_home() / "bin" / "java")
    return [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def _class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = Path(spec.origin).parent / "jars"
    return os.pathsep.join(str(jar) for name in _JARS for jar in sorted(jars.glob(f"{name}.jar")))


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[ZooKeeperServer]:
    """A running server; killed at the end. Without Spark's jars the test is skipped."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("ZooKeeper's jars are Spark's: make install-spark installs them")
    server = ZooKeeperServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
