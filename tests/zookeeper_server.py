"""A real ZooKeeper on 127.0.0.1, from the jars that Spark brings along."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from harness import DEADLINE, free_port

from benchmarks.servers import can_run_zookeeper, zookeeper_command
from s4node.cluster.tree.zookeeper import ZooKeeperCoordination

TICK_SECONDS = 0.5
LONGEST_SESSION = 60.0
SHORTEST_SESSION = 2 * TICK_SECONDS


def through_zookeeper(argument: str, timeout: float) -> ZooKeeperCoordination:
    """For the processes of the conformance kit."""
    return ZooKeeperCoordination(argument, session_timeout=timeout)


class ZooKeeperServer:
    """One server, which keeps its data in ``folder``; killed by :func:`zookeeper_server`.

    With ``inside``, which precedes its command, it may run where ``host`` is another machine.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.of_ensemble: tuple[int, str] | None = None  # its number, and the lines of all
        self._host = host
        self._inside = inside
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, root: str) -> str:
        """The URL of a tree with this root."""
        return f"zk://{self._host}:{self.port}/{root}"

    def start(self) -> None:
        self.launch()
        self.wait_answering()

    def launch(self) -> None:
        """Start it, unless it runs, without waiting: a server of an ensemble answers once most of
        them run."""
        if self._process is not None:
            return
        self._folder.mkdir(exist_ok=True)
        number, lines = self.of_ensemble or (0, "")
        if number:
            (self._folder / "myid").write_text(f"{number}\n")
        config = self._folder / "zoo.cfg"
        config.write_text(
            f"tickTime={int(TICK_SECONDS * 1000)}\n"
            f"dataDir={self._folder}\nclientPort={self.port}\nclientPortAddress={self._host}\n"
            "admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n"
            f"maxSessionTimeout={int(LONGEST_SESSION * 1000)}\n{lines}"
        )
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._inside, *zookeeper_command(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_answering(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 3 * DEADLINE
        while not self.mode():
            said = (self._folder / "log").read_text()
            assert self._process.poll() is None, f"ZooKeeper has ended: {said}"
            assert time.monotonic() < deadline, f"ZooKeeper does not answer: {said}"
            time.sleep(0.05)

    def mode(self) -> str:
        """Its role: standalone, leader or follower; empty if it does not answer."""
        with suppress(OSError), socket.create_connection((self._host, self.port), 1) as end:
            end.sendall(b"srvr")
            _, found, rest = end.recv(4096).decode().partition("Mode: ")
            return rest.split()[0] if found else ""
        return ""

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def wipe(self) -> None:
        shutil.rmtree(self._folder)

    def kill(self) -> None:
        """kill -9, and wait until it is gone; may be called twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[ZooKeeperServer]:
    """A running server; killed at the end. Without Spark's jars the test is skipped."""
    _check_jars()
    server = ZooKeeperServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class ZooKeeperEnsemble:
    """Three servers, of which two have to run. ``host`` and ``inside`` are as for one."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        folder.mkdir()
        self._host = host
        self.servers = [ZooKeeperServer(folder / str(n), host, inside) for n in (1, 2, 3)]
        lines = "initLimit=20\nsyncLimit=4\n" + "".join(
            f"server.{number}={host}:{free_port()}:{free_port()}\n" for number in (1, 2, 3)
        )
        for number, server in enumerate(self.servers, 1):
            server.of_ensemble = number, lines

    def url(self, root: str) -> str:
        return f"zk://{','.join(f'{self._host}:{each.port}' for each in self.servers)}/{root}"

    def leader(self) -> ZooKeeperServer:
        """The server that leads; raises StopIteration if none does."""
        return next(each for each in self.servers if each.mode() == "leader")

    def start(self) -> None:
        """Start those that do not run, and wait until all answer."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_answering()

    def signal(self, number: signal.Signals) -> None:
        for server in self.servers:
            server.signal(number)

    def kill(self) -> None:
        """kill -9 all of them; may be called twice."""
        for server in self.servers:
            server.kill()


def _check_jars() -> None:
    if not can_run_zookeeper():
        pytest.skip("ZooKeeper's jars are Spark's: make install-spark installs them")
