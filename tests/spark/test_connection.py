"""A connection for a thread that blocks: how long it waits, and where it is sent on to."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("pyspark")

import trio
from harness import running
from pyspark.sql.types import StructType
from shared_apps import Click, Ignore, OnePE

from s4node.cluster.node.redirector import Redirector
from s4node.config.config import Config
from s4node.errors import ConfigError, ConnectionRefused, SinkError
from s4node.events.schema import EventType
from s4node.net.wire import frame as wire
from s4node.spark.connection import Connection
from s4node.spark.event_rows import event_class
from s4node.spark.history import bootstrap
from s4node.spark.sink import Sink, Staged, Target
from s4node.spark.upload import Upload

pytestmark = pytest.mark.long

PATIENCE = 1.0
ANSWERS = 8  # about progress, each after a quarter of the patience: more than the patience in all


def test_an_answer_is_waited_for_as_long_as_there_is_progress() -> None:
    with peer(progressing=True) as address:
        link = Connection(address, PATIENCE)
        assert link.query("work", {}, ("progress", {})) == {"done": True}
        assert link.progressed
        link.close()
    with peer(progressing=False) as address:
        link = Connection(address, PATIENCE)
        with pytest.raises(TimeoutError, match="does not answer"):
            link.query("work", {}, ("progress", {}))
        link.close()


def test_a_node_that_is_gone_at_the_end_does_not_prove_that_nothing_is_visible() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    sink = Sink(Target((address,), "clicks", "shop:Click", patience=0.1), StructType())
    with pytest.raises(SinkError, match="look for job/nightly in s4 log sinks") as error:
        sink.publish([Staged("job/nightly", 0, "0/0", {0: 1})], last=True)
    assert "Nothing of the batch is visible" not in str(error.value)


def test_a_class_that_is_missing_is_to_be_shipped_to_spark() -> None:
    with pytest.raises(ConfigError, match="ship its module to Spark's driver and executors"):
        event_class("absent:Click")
    with pytest.raises(ConfigError, match="'shop' of option type lacks the class; name it as pack"):
        event_class("shop")


def test_a_bootstrap_says_that_the_log_is_down_without_options_that_it_does_not_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    with pytest.raises(ConnectionRefused, match=r"no node answers .* start the node of") as error:
        bootstrap._partitions(address, "clicks", Config())
    assert "patience" not in str(error.value)


async def test_rows_for_an_app_are_sent_to_the_nodes_that_run_it_by_way_of_one_that_does_not() -> (
    None
):
    config = Config.from_values({"s4.listener.address": "tcp://127.0.0.1:0"})
    async with running(OnePE(Ignore, "live", name="some")) as container:
        redirector = Redirector(config, "a", lambda _stream, _reads: (container.address,))

        def upload() -> dict[int, int]:
            kind = EventType(Click)
            found = Upload([redirector.address], "live", "p", kind.declaration, 5.0)
            found.send(0, 1, kind.encode([Click("one")]), routed=False)
            return found.finish()

        async with trio.open_nursery() as nursery:
            await nursery.start(redirector.run)
            assert await trio.to_thread.run_sync(upload) == {0: 1}
            nursery.cancel_scope.cancel()


# -- set-up ---------------------------------------------------------------------------------------


@contextmanager
def peer(*, progressing: bool) -> Iterator[str]:
    """A peer that answers the question "work" after some about its progress."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening, progressing))
        thread.start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def serve(listening: socket.socket, progressing: bool) -> None:
    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as arriving:
        connection.sendall(arriving.read(8))
        work = asked = 0
        while size := arriving.read(8):
            data = arriving.read(struct.unpack(">Q", size)[0])
            (frame,) = wire.read_envelope(data, 1 << 20)
            assert isinstance(frame, wire.Frame)
            assert isinstance(frame.header, wire.Query)
            query = frame.header
            if query.question == "work":
                work = query.id
                continue
            asked += 1
            answers = [wire.Answer(query.id, {"carried": asked if progressing else 0})]
            if asked == ANSWERS:
                answers.append(wire.Answer(work, {"done": True}))
            reply = wire.envelope([wire.encode_frame(each) for each in answers])
            connection.sendall(struct.pack(">Q", len(reply)) + reply)
