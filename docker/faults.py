"""Kills, stops and cuts the parts of the cluster of compose.yaml, one after the other.

A sender sends lines of words through all of it. After each fault everything must be healthy within
half a minute, and each word must have been counted exactly as often as it was sent.

Rules
- A fault is a pair: what breaks something, and what heals it after ``seconds``. Breaking returns at
  once; healing leaves every service of the page running.
- The counts are those that the app itself reports to a reader, so they have passed all of it.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SENDER = Path(__file__).with_name("faults_sender.py")
NETWORK = "default"
HEAL_SECONDS = 30.0
"""How soon after a fault has ended the cluster has to be well, and its counts right."""

TOTALS_SECONDS = 8.0
"""How long a reader may wait for totals, which the app tells each second."""

Run = Callable[..., str]


class Wrong(Exception):  # noqa: N818 - it is a finding
    """The counts are not what was sent, or do not come."""


class Missing(Wrong):
    """Something has not come in time."""


@dataclass(frozen=True)
class Fault:
    """Something breaks, and is healed after so many seconds."""

    name: str
    breaks: Callable[[], None]
    heals: Callable[[], None]
    seconds: float


class Cluster:
    """The running project; ``run`` runs a command and returns its output."""

    def __init__(self, run: Run, compose: list[str], project: str) -> None:
        self._run, self._compose, self._project = run, compose, project

    def compose(self, *words: str) -> str:
        """Run a command of Compose."""
        return self._run(*self._compose, *words)

    def container(self, service: str) -> str:
        """The id of a service's container."""
        return self.compose("ps", "--quiet", service).strip()

    def kill(self, *services: str) -> Callable[[], None]:
        """Kill services as a power cut would."""
        return lambda: void(self.compose("kill", "-s", "SIGKILL", *services))

    def start(self, *services: str) -> Callable[[], None]:
        """Start them again."""
        return lambda: void(self.compose("up", "--detach", "--no-deps", *services))

    def pause(self, service: str) -> Callable[[], None]:
        """Stop all processes of a service where they are."""
        return lambda: void(self.compose("pause", service))

    def unpause(self, service: str) -> Callable[[], None]:
        """Let them go on."""
        return lambda: void(self.compose("unpause", service))

    def kill_app(self, service: str) -> Callable[[], None]:
        """Kill the process that runs the app, not its node."""
        program = (
            "import os, signal\n"
            "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
            "    try: words = open(f'/proc/{pid}/cmdline').read()\n"
            "    except OSError: continue\n"
            "    if 'container_process' in words and int(pid) != os.getpid():\n"
            "        os.kill(int(pid), signal.SIGKILL); print(pid)\n"
        )

        def kill() -> None:
            if not self.compose("exec", "-T", service, "python", "-c", program).strip():
                raise Wrong(f"{service} has no process of an app")

        return kill

    def cut(self, service: str) -> Callable[[], None]:
        """Take a service from the network."""
        return lambda: void(
            self._run("docker", "network", "disconnect", self._network, self.container(service))
        )

    def join(self, service: str) -> Callable[[], None]:
        """Give it back."""
        aliases = ("--alias", service, "--alias", "demo")
        return lambda: void(
            self._run("docker", "network", "connect", *aliases, self._network,
                      self.container(service))
        )  # fmt: skip

    def lose_volume(self, service: str) -> Callable[[], None]:
        """Kill a service and delete its container and its disk."""

        def lose() -> None:
            self.compose("kill", "-s", "SIGKILL", service)
            self.compose("rm", "--force", service)
            self._run("docker", "volume", "rm", f"{self._project}_{service}")

        return lose

    def leader(self) -> str:
        """The ZooKeeper that leads."""
        ask = "exec 3<>/dev/tcp/127.0.0.1/2181 && echo srvr >&3 && cat <&3"
        for service in ("zoo1", "zoo2", "zoo3"):
            if "Mode: leader" in self.compose("exec", "-T", service, "bash", "-c", ask):
                return service
        raise Wrong("no ZooKeeper leads")

    @property
    def _network(self) -> str:
        return f"{self._project}_{NETWORK}"


def void(_: object) -> None:
    """Nothing, of whatever a command said."""


def faults_of(cluster: Cluster) -> list[Fault]:
    """Every fault; the session's time-out is 4 s."""
    kill, start, leader = cluster.kill, cluster.start, cluster.leader()
    keepers = ("zoo1", "zoo2", "zoo3")
    return [
        Fault("the app's process of node1 is killed", cluster.kill_app("node1"), lambda: None, 0),
        Fault("node2 is killed", kill("node2"), start("node2"), 8),
        Fault("node3 loses its disk", cluster.lose_volume("node3"), start("node3"), 8),
        Fault("node1 stops for 2 s", cluster.pause("node1"), cluster.unpause("node1"), 2),
        Fault("node2 stops for 10 s", cluster.pause("node2"), cluster.unpause("node2"), 10),
        Fault("node3 is cut off for 10 s", cluster.cut("node3"), cluster.join("node3"), 10),
        Fault("the leading ZooKeeper is killed", kill(leader), start(leader), 8),
        Fault("every ZooKeeper is killed", kill(*keepers), start(*keepers), 12),
        Fault("the store is killed", kill("store"), start("store"), 12),
        Fault("the store stops for 8 s", cluster.pause("store"), cluster.unpause("store"), 8),
        Fault("two nodes are killed", kill("node1", "node3"), start("node1", "node3"), 8),
    ]


class Lines:
    """The lines of a process's output, read beside it, so that each can be waited for."""

    def __init__(self, *command: str, name: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def tell(self) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def next(self, until: float) -> str:
        """Its next line; raises Missing if it says nothing until then, Wrong if it has ended."""
        try:
            line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise Missing(f"{self.name} has said nothing in time") from None
        if not line:
            raise Wrong(f"{self.name} has ended with status {self.process.wait()}")
        return line


@contextmanager
def lines_of(*command: str, name: str) -> Iterator[Lines]:
    """Run a command for the block."""
    lines = Lines(*command, name=name)
    try:
        yield lines
    finally:
        lines.process.kill()
        lines.process.wait()


def counted(sender: Lines, compose: list[str], until: float) -> int:
    """End a round: how many words were sent, once each has been counted that often.

    Raises Wrong if one has been counted too often, or not often enough in time. A reader may miss
    a total while its connection is lost; then the words are sent once more, and their totals come
    again.
    """
    tail = (*compose, "exec", "-T", "node1", "s4", "tail", "totals")
    with lines_of(*tail, "--config", "cluster.properties", name="s4 tail totals") as reader:
        reader.next(until)  # it reads from now on
        while True:
            sender.tell()
            sent: dict[str, int] = json.loads(sender.next(until))
            again = min(until, time.monotonic() + TOTALS_SECONDS)
            try:
                read_totals(reader, sent, again)
                return sum(sent.values())
            except Missing as error:
                if again == until:
                    raise Wrong(str(error)) from None
                sender.tell()


def read_totals(reader: Lines, sent: dict[str, int], until: float) -> None:
    """Read until each word has its count; raises Wrong if one has more, Missing in the end."""
    missing = dict(sent)
    while missing:
        try:
            total = json.loads(reader.next(until))
        except Missing as error:
            raise Missing(f"{error}; not counted that often: {missing}") from None
        word, count = total["word"], total["count"]
        if count > sent[word]:
            raise Wrong(f"{word} was sent {sent[word]} times and counted {count} times")
        if count == sent[word]:
            missing.pop(word, None)


def inject(
    run: Run, compose: list[str], project: str, wait_healthy: Callable[[float], None]
) -> None:
    """Deploy the words and try each fault; raises Wrong, or what a command raises."""
    cluster = Cluster(run, compose, project)
    cluster.compose("exec", "-T", "node1", "s4", "deploy", "apps.words.app", "--config",
                    "cluster.properties", "-p", "s4.stream.lines.grade=durable")  # fmt: skip
    program = (*compose, "exec", "-T", "adapter", "python", "-c", SENDER.read_text())
    with lines_of(*program, name="the sender") as sender:
        sender.tell()
        counted(sender, compose, time.monotonic() + 2 * HEAL_SECONDS)
        for fault in faults_of(cluster):
            sender.tell()
            time.sleep(2)  # so that there is something to lose
            fault.breaks()
            time.sleep(fault.seconds)
            fault.heals()
            healed = time.monotonic()
            wait_healthy(HEAL_SECONDS)
            try:
                words = counted(sender, compose, healed + HEAL_SECONDS)
            except Wrong as error:
                raise Wrong(f"{fault.name}: {error}") from None
            took = time.monotonic() - healed
            print(f"    {fault.name}: {words:,} words, exact {took:.1f} s after", flush=True)
