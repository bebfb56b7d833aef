"""Servers for benchmarks, each a process on a free port: ZooKeeper, S3, and a broker of Kafka.

ZooKeeper comes with the jars that Spark brings along. The S3 server is versitygw if that is in the
path, else moto, which takes several times as long for a request. ``tools/install kafka`` gets the
broker.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from s4node.errors import S4Error

SESSION_SECONDS = 4.0
"""The timeout that ZooKeeper grants."""

_JARS = ("zookeeper-*", "slf4j-api-*", "metrics-core-*", "snappy-java-*", "netty-*", "commons-io-*")
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_START_SECONDS = 60.0
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
KAFKA = _CACHE / "s4node" / "kafka-3.9.1"
_KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{controller}
listeners=PLAINTEXT://{address},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://{address}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
auto.create.topics.enable=false
"""
_S3_LOG = "s3.log"
_REQUEST = re.compile(r"^.*\b(?:DELETE|GET|HEAD|POST|PUT)\b.*$", re.MULTILINE)


def can_run_zookeeper() -> bool:
    """Return True if Spark's jars, and what connects to ZooKeeper, are installed."""
    return _installed("pyspark", "kazoo")


def can_run_s3() -> bool:
    """Return True if an S3 server, and what connects to it, are installed."""
    return _installed("s3fs") and bool(shutil.which("versitygw") or _installed("moto"))


def _installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) for name in names)


def zookeeper_command(config: Path) -> list[str]:
    """The command line of a ZooKeeper with this configuration."""
    from s4node.spark.java import java_home

    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = Path(spec.origin).parent / "jars"
    path = os.pathsep.join(str(jar) for name in _JARS for jar in sorted(jars.glob(f"{name}.jar")))
    java = str(java_home() / "bin" / "java")
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [java, *options, "-cp", path, _MAIN, str(config)]


@contextmanager
def zookeeper(folder: Path) -> Iterator[str]:
    """A ZooKeeper with its data in ``folder``, during the block; the URL of a tree there."""
    port = _free_port()
    folder.mkdir()
    config = folder / "zoo.cfg"
    config.write_text(
        f"tickTime=500\ndataDir={folder}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\n4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n"
    )
    with Server(zookeeper_command(config), folder / "log", lambda: _serves(port)):
        yield f"zk://127.0.0.1:{port}/bench"


def can_run_kafka() -> bool:
    """Return True if a broker of Kafka, and what connects to it, are installed."""
    return _installed("confluent_kafka") and (KAFKA / "complete").exists()


@contextmanager
def kafka(folder: Path) -> Iterator[str]:
    """A broker of Kafka with its data in ``folder``, during the block, and its address."""
    address, controller = (f"127.0.0.1:{_free_port()}" for _ in range(2))
    folder.mkdir()
    properties = folder / "server.properties"
    properties.write_text(
        _KAFKA_PROPERTIES.format(address=address, controller=controller, folder=folder)
    )
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{KAFKA}/*"]
    cluster = ("-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(properties))
    format_ = [*java, "kafka.tools.StorageTool", "format", *cluster]
    subprocess.run(format_, check=True, stdout=subprocess.DEVNULL)
    port = int(address.rpartition(":")[2])
    with Server([*java, "kafka.Kafka", str(properties)], folder / "log", lambda: _listens(port)):
        yield address


@contextmanager
def s3(folder: Path, milliseconds: int = 0, bytes_per_second: float = math.inf) -> Iterator[str]:
    """An S3 server with its data in ``folder``, during the block, and a URL there. Each request
    takes so many milliseconds longer, and all get so many bytes in a second. Processes find the
    server by their environment."""
    port = _free_port()
    with s3_server(folder, port), _forwarded(port, milliseconds, bytes_per_second) as at:
        yield s3_url(at)


def s3_keeps() -> bool:
    """Return True if the S3 server keeps its objects when it is killed."""
    return shutil.which("versitygw") is not None


def s3_server(folder: Path, port: int) -> Server:
    """An S3 server at a port, with its data in ``folder``."""
    return Server(_s3_command(folder, port), folder / _S3_LOG, lambda: _listens(port))


def s3_url(port: int) -> str:
    """Make a bucket, and have processes find its server by their environment; a URL there."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "user",
        "AWS_SECRET_ACCESS_KEY": "password",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bench")
    return "s3://bench/state"


def s3_requests(folder: Path) -> int:
    """How many requests the S3 server with its data in ``folder`` has had: it logs a line each."""
    return len(_REQUEST.findall((folder / _S3_LOG).read_text()))


def _s3_command(folder: Path, port: int) -> list[str]:
    program = shutil.which("versitygw")
    if program is None:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    objects = folder / "objects"
    objects.mkdir()
    user = ["--access", "user", "--secret", "password"]
    place = ["--port", f"127.0.0.1:{port}", "--keep-alive"]  # as the stores of clouds do
    return [program, *user, *place, "posix", str(objects)]


@contextmanager
def _forwarded(port: int, milliseconds: int, bytes_per_second: float) -> Iterator[int]:
    """The port of a forwarder that makes ``port`` slow; the same port if it need not."""
    if not milliseconds and bytes_per_second == math.inf:
        yield port
        return
    numbers = (str(each) for each in (port, milliseconds, bytes_per_second))
    command = [sys.executable, "-m", "benchmarks.delay_line", *numbers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarder:
        try:
            assert forwarder.stdout is not None
            yield int(forwarder.stdout.readline())
        finally:
            forwarder.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
        return number


class Server:
    """A process; as a context it runs, and answers. It may be killed and started meanwhile."""

    def __init__(self, command: Sequence[str], log: Path, answers: Callable[[], bool]) -> None:
        self._command, self._log, self._answers = command, log, answers
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return once it answers; raises S4Error if it does not."""
        with self._log.open("ab") as file:
            self._process = subprocess.Popen(self._command, stdout=file, stderr=file)
        until = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                said = self._log.read_text()[-1000:]
                raise S4Error(f"{self._command[0]} does not start: {said}")
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9, and wait until it is gone; may be called twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _serves(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as end:
        end.sendall(b"srvr")
        return b"Mode: " in end.recv(4096)
    return False
