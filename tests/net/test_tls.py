"""Peers with certificates: who may connect, and who may do what, against running nodes."""

from __future__ import annotations

import pickle
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from certificates import TLS, Issuer
from harness import data_frame, limit_peers, plain_errors, run_s4, running, s4_process, until
from lanes import Changes
from log_nodes import Tap, log_node
from recording_app import RecordingApp
from several_containers import nodes, words
from shared_apps import Click, OnePE
from structlog.testing import capture_logs

from s4node import Client, Container, Credentials, ProcessingElement, SyncClient
from s4node.config.config import Config
from s4node.errors import ConfigError, ConnectionRefused, StageBroken
from s4node.events.event import handled
from s4node.events.schema import EventType, JsonText
from s4node.net.transport.network import Tcp
from s4node.net.wire import frame as wire
from s4node.spark.connection import ask
from s4node.spark.upload import Upload
from s4node.systems.embedded_log import EmbeddedLog

BANK = "s4://default/producer/bank"
NODE = "s4://default/node/node"


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "certs")


async def test_events_of_a_producer_with_a_certificate_are_processed(issuer: Issuer) -> None:
    async with running(RecordingApp(), issuer.node()) as node:
        assert node.listener.address.startswith("tls+tcp://127.0.0.1:")
        bank = issuer.credentials(BANK)
        async with Client(node.listener.address, credentials=bank) as client:
            assert client.producer.startswith("bank/client-")
            stream = await client.stream("clicks")
            for n in range(5000):
                await stream.send(Click(f"user {n % 7}", n, "x" * n))
            assert await client.flush() == []
        assert node.statistics().inputs["clicks"].admitted == 5000


async def test_a_synchronous_client_with_a_certificate_sends_and_reads(
    issuer: Issuer, tmp_path: Path
) -> None:
    async with log_node(tmp_path, settings=issuer.node()) as node:
        address = node.listener.address
        ops = issuer.credentials("s4://default/operator/ops")
        async with log_at(address, ops) as log:
            await log.create("taps")

        def send_and_read() -> list[str]:
            with SyncClient(address, producer="ops/1", credentials=ops) as client:
                taps = client.stream("taps", types=Tap)
                taps.send(Tap("a"))
                taps.flush()
                with client.subscribe("taps", types=Tap, start={0: 0}) as events:
                    return [next(iter(events)).name]

        assert await trio.to_thread.run_sync(send_and_read) == ["a"]


async def test_a_peer_that_nng_dials_in_tls_is_served(issuer: Issuer) -> None:
    async with (
        running(RecordingApp(), issuer.node()) as node,
        issuer.peer(node.listener.address, BANK) as peer,
    ):
        assert not (await peer.open("clicks", "bank", Click)).error
        await peer.send_frames(data_frame("clicks", "bank", 0, [Click("ann")]))
        await until(lambda: node.statistics().inputs["clicks"].admitted == 1)


async def test_members_send_each_other_what_belongs_to_them(issuer: Issuer, tmp_path: Path) -> None:
    texts = ["to be or not", "to be that is", "the question"] * 20
    async with nodes(tmp_path / "nodes", words, 2, app="words", **issuer.node()) as (both, _):
        bank = issuer.credentials(BANK)
        async with Client(both.containers["n0"].address, credentials=bank) as client:
            stream = await client.stream("clicks")
            stream.read_as()  # lines cannot be routed, so the first node passes them on
            await stream.send_many(
                [
                    JsonText(msgspec.json.encode({"user": f"u{n}", "text": text}))
                    for n, text in enumerate(texts)
                ]
            )
            assert await client.flush() == []
        counted = Counter(" ".join(texts).split())
        await until(lambda: both.state("CountWords") == counted)
        assert all(container.processed for container in both.containers.values())


async def test_who_has_sent_an_event_is_known_at_the_node_to_which_it_is_forwarded(
    issuer: Issuer, tmp_path: Path
) -> None:
    places: list[str] = []

    def note(_pe: ProcessingElement, _click: Click) -> None:
        now = handled.get()
        assert now is not None
        places.append(now[1].position(now[1].at))

    made, tls = (lambda: OnePE(note)), issuer.node()
    async with nodes(tmp_path / "nodes", made, 2, **tls) as (both, _):
        bank = issuer.credentials(BANK)
        async with Client(both.containers["n0"].address, credentials=bank) as client:
            clicks = await client.stream("clicks")
            clicks.read_as()  # lines cannot be routed, so the first node passes them on
            texts = [JsonText(b'{"user": "u%d"}' % n) for n in range(40)]
            await clicks.send_many(texts)
            assert await client.flush() == []
            forwarded = [place for place in places if " from " in place]
            assert all(place.endswith(f" from {client.producer}") for place in forwarded)
            assert 0 < len(forwarded) < len(places) == 40
            assert sum(f"@{client.producer}:" in place for place in places) == 40 - len(forwarded)


@pytest.mark.slow
async def test_a_command_uses_the_certificate_of_a_running_node_that_it_finds(
    issuer: Issuer, tmp_path: Path
) -> None:
    settings = issuer.node("logs") | {
        "s4.log.folder": str(tmp_path / "log"),
        "s4.coordination.folder": str(tmp_path / "coordination"),
    }
    options = [word for name, value in settings.items() for word in ("-p", f"{name}={value}")]
    async with s4_process("node", "logs", *options, cwd=tmp_path):
        made = await run_s4("log", "create", "taps", cwd=tmp_path)
        assert made.returncode == 0, made.stderr


def test_a_task_of_spark_appends_under_its_certificate(issuer: Issuer, tmp_path: Path) -> None:
    bank = pickle.loads(pickle.dumps(issuer.credentials(BANK)))  # as Spark sends it to a worker
    ops = issuer.credentials("s4://default/operator/ops")

    def work(address: str) -> dict[int, int]:
        with pytest.raises(ConnectionRefused, match="may not create, trim or remove"):
            ask([address], 10, "create", stream="taps", credentials=bank)
        ask([address], 10, "create", stream="taps", credentials=ops)
        kind = EventType(Tap)
        upload = Upload([address], "taps", "spark-1", kind.declaration, 10, bank)
        assert upload.producer == "bank/spark-1"
        upload.send(0, 2, kind.encode([Tap("a"), Tap("b")]), routed=False)
        return upload.finish()

    async def main() -> None:
        async with log_node(tmp_path, settings=issuer.node()) as node:
            assert await trio.to_thread.run_sync(work, node.listener.address) == {0: 2}

    trio.run(main)


async def test_commands_take_certificates(issuer: Issuer, tmp_path: Path) -> None:
    async with running(RecordingApp(), issuer.node()) as node:
        address, mine = node.listener.address, issuer.folder / "bank" / "tls.properties"
        issuer.files(BANK)
        for command in (["health", address], ["send", "clicks", "--to", address]):
            line = b'{"user": "ann"}\n'
            bare = await run_s4(*command, cwd=tmp_path, stdin=line)
            assert bare.returncode == 2
            assert "no certificate is given" in bare.stderr
            done = await run_s4(*command, "--config", mine, cwd=tmp_path, stdin=line)
            assert done.returncode == 0, done.stderr
        assert node.statistics().inputs["clicks"].admitted == 1


# -- who may connect ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ("none", "certificate required"),
        ("expired", "certificate expired"),
        ("of another authority", "unknown ca"),
        ("of another cluster", "names nobody in cluster 'default'"),
        ("of the authority itself", "unsupported certificate"),
        ("revoked", "is revoked"),
    ],
)
async def test_a_peer_is_refused_for_a_certificate(
    shown: str, told: str, issuer: Issuer, tmp_path: Path
) -> None:
    revoked = tmp_path / "revoked.txt"
    revoked.write_text("# none\n")
    settings = {**issuer.node(), "s4.tls.revoked": str(revoked)}
    async with running(RecordingApp(), settings) as node:
        address = node.listener.address
        files: tuple[str, ...] = ()
        match shown:
            case "expired":
                files = tuple(issuer.files(BANK, days=-0.001).values())
            case "of another authority":
                files = tuple(Issuer(tmp_path / "others").files(BANK).values())
            case "of another cluster":
                files = tuple(issuer.files("s4://other/producer/bank").values())
            case "of the authority itself":
                files = (str(issuer.folder / "authority.pem"), str(issuer.folder / "authority.key"))
            case "revoked":
                holder = issuer.authority.issue([BANK], 1)
                files = tuple(
                    str(issuer.folder / "bank" / f) for f in ("certificate.pem", "key.pem")
                )
                revoked.write_text(f"{holder.serial:x}  # lost\n")
        assert told in await trio.to_thread.run_sync(answer_to, address, files[:2])
        assert node.listener.counts["connections"] == 1
        async with Client(address, credentials=issuer.credentials(BANK)) as client:
            await client.stream("clicks")


async def test_a_client_tells_why_a_node_refuses_its_certificate(
    issuer: Issuer, tmp_path: Path
) -> None:
    async with running(RecordingApp(), issuer.node()) as node:
        others = Issuer(tmp_path / "others").files(BANK)
        mixed = {**others, "s4.tls.authority": str(issuer.folder / "authority.pem")}
        stranger = Credentials(*mixed.values())
        client = Client(node.listener.address, credentials=stranger, timeout=0.5)
        with capture_logs() as lines:
            async with client:
                while not any("unknown ca" in str(line.get("reason")) for line in lines):
                    with pytest.raises(ConnectionRefused):
                        await client.stream("clicks")


@pytest.mark.parametrize(
    ("identity", "told"),
    [
        ("s4://default/producer/node", "is not a node of default"),
        ("s4://other/node/node", "is not a node of default"),
    ],
)
async def test_a_client_sends_nothing_to_a_server_that_is_not_a_node_of_its_cluster(
    issuer: Issuer, identity: str, told: str
) -> None:
    impostor = issuer.credentials(identity)
    bank = issuer.credentials(BANK)
    [place] = await Tcp().listen("127.0.0.1", 0, impostor)
    with closing(place):
        got: list[bytes] = []

        async def serve() -> None:
            while True:
                caller = await place.accept()
                assert caller is not None
                pipe = caller.make_pipe(1 << 20, Changes())
                while not pipe.fault and not pipe._ended:
                    await pipe.wait_readable()
                    got.extend(filter(None, [pipe.receive_nowait()]))
                await pipe.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            address = f"tls+tcp://127.0.0.1:{place.port}"
            async with Client(address, credentials=bank, timeout=0.5) as client:
                with pytest.raises(ConnectionRefused, match=told):
                    await client.stream("clicks")
            nursery.cancel_scope.cancel()
        assert got == []


async def test_a_connected_peer_whose_certificate_is_revoked_is_disconnected(
    issuer: Issuer, tmp_path: Path
) -> None:
    revoked = tmp_path / "revoked.txt"
    revoked.write_text("")
    settings = {**issuer.node(), "s4.tls.revoked": str(revoked), "s4.listener.patience": "400"}
    async with running(RecordingApp(), settings) as node:
        bank = issuer.credentials(BANK)
        async with Client(node.listener.address, credentials=bank, timeout=0.5) as client:
            stream = await client.stream("clicks")
            await stream.send(Click("ann"))
            await client.flush()
            with capture_logs() as lines:
                revoked.write_text(f"{bank.holder.serial:X}\n")
                await until(lambda: node.listener.counts["connections ended"])
                await until(lambda: any("is revoked" in line.get("reason", "") for line in lines))
                await stream.send(Click("ann"))
                with pytest.raises(StageBroken, match=r"certificate .* is revoked"):
                    await client.flush()
            client.abandon()
        assert node.statistics().inputs["clicks"].admitted == 1


async def test_a_client_that_is_turned_away_comes_seldom_and_logs_it_once(
    issuer: Issuer, tmp_path: Path
) -> None:
    revoked = tmp_path / "revoked.txt"
    revoked.write_text("")
    async with running(RecordingApp(), {**issuer.node(), "s4.tls.revoked": str(revoked)}) as node:
        bank = issuer.credentials(BANK)
        async with Client(node.listener.address, credentials=bank) as client:
            await client.stream("clicks")
            before = node.listener.counts["connections"]
            with capture_logs() as lines:
                revoked.write_text(f"{bank.holder.serial:X}\n")
                await until(lambda: node.listener.counts["connections"] > before + 6)
            client.abandon()
    told = [line["event"] for line in lines if line["log_level"] == "info"]
    assert len([event for event in told if event.startswith("the node takes no more")]) == 1
    assert told.count("connection lost; dialling again") == 1


async def test_a_peer_is_told_when_its_certificate_expires(issuer: Issuer) -> None:
    settings = {**issuer.node(), "s4.listener.patience": "400"}
    async with running(RecordingApp(), settings) as node:
        brief = issuer.credentials(BANK, days=3 / 86400)
        async with Client(node.listener.address, credentials=brief, timeout=2) as client:
            with capture_logs() as lines:
                await client.stream("clicks")
                await until(
                    lambda: any(
                        line["event"].startswith("the node takes no more")
                        and "has expired" in line["reason"]
                        for line in lines
                    )
                )
            client.abandon()
        with pytest.raises(ConfigError, match="has expired, so no peer takes it"):
            issuer.credentials(BANK, days=-1)


async def test_changed_certificates_are_used_for_the_next_connections(issuer: Issuer) -> None:
    async with running(RecordingApp(), issuer.node()) as node:
        bank = issuer.credentials(BANK)
        async with Client(node.listener.address, credentials=bank) as client:
            before = await client.stream("clicks")
            serial = await trio.to_thread.run_sync(serial_of, node.listener.address, bank)
            renewed = issuer.authority.issue([NODE], 1).serial
            assert await trio.to_thread.run_sync(serial_of, node.listener.address, bank) == renewed
            assert renewed != serial
            issuer.authority.issue([BANK], 1)
            async with Client(node.listener.address, credentials=bank) as second:
                await second.stream("clicks")
            await before.send(Click("ann"))
            assert await client.flush() == []
            (issuer.folder / "node" / "key.pem").write_text("half of a key")
            with capture_logs() as lines:
                async with Client(node.listener.address, credentials=bank) as third:
                    await third.stream("clicks")
            [told] = [line for line in lines if "cannot be used" in line["event"]]
            assert "half of a key" not in str(told)


async def test_handshakes_that_an_address_does_not_finish_keep_nobody_out(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_peers(monkeypatch, half_open_per_host=2)
    settings = {**issuer.node(), "s4.comm.timeout": "60000"}
    async with running(RecordingApp(), settings) as node, AsyncExitStack() as crowd:
        listener = node.listener

        async def half_open() -> trio.SocketStream:
            raw = trio.socket.socket()
            await raw.bind(("127.0.0.2", 0))
            await raw.connect(("127.0.0.1", int(listener.address.rpartition(":")[2])))
            return await crowd.enter_async_context(trio.SocketStream(raw))

        first, _, third = [await half_open() for _ in range(3)]
        assert await third.receive_some() == b""
        assert listener.counts["connections refused"] == 1
        async with Client(listener.address, credentials=issuer.credentials(BANK)) as client:
            await client.stream("clicks")
        await first.aclose()
        await until(lambda: len(listener.connections) == 1)
        await half_open()
        await until(lambda: len(listener.connections) == 2)
        assert listener.counts["connections refused"] == 1
        listener.stop_accepting()


# -- who may do what ------------------------------------------------------------------------------


async def test_a_producer_cannot_claim_to_be_a_member(issuer: Issuer) -> None:
    hello = wire.Hello("bank", "1", "clicks", headers={wire.CLUSTER: "default"})
    assert "may not be a member or a task" in await refused(issuer, BANK, hello)


async def test_a_producer_cannot_claim_to_be_another_producer(issuer: Issuer) -> None:
    hello = wire.Hello("bank-1", "1", "clicks")
    told = await refused(issuer, BANK, hello)
    assert "may not be the producer 'bank-1': its ids are 'bank' and those that begin" in told


async def test_a_producer_cannot_claim_to_be_a_task_with_the_highest_fence(issuer: Issuer) -> None:
    task = "~default/app/0#1"
    hello = wire.Hello(task, "1", "clicks", headers={wire.FENCE: 1 << 60})
    assert f"may not be the task {task!r}" in await refused(issuer, BANK, hello)
    fenced = wire.Hello("bank", "1", "clicks", headers={wire.FENCE: 1 << 60})
    assert "may not be a member or a task" in await refused(issuer, BANK, fenced)


async def test_events_under_another_name_are_refused_without_a_hello(issuer: Issuer) -> None:
    async with (
        running(RecordingApp(), issuer.node()) as node,
        Client(
            node.listener.address,
            producer="bank-1",
            credentials=issuer.credentials("s4://default/producer/bank-1"),
        ) as client,
        issuer.peer(node.listener.address, BANK) as thief,
    ):
        stream = await client.stream("clicks")
        await thief.send_frames(data_frame("clicks", "bank-1", 0, [Click("eve", n=666)]))
        answer = await thief.receive_until(lambda header: isinstance(header, wire.Verdict))
        assert isinstance(answer, wire.Verdict)
        assert "may not be the producer 'bank-1'" in answer.error
        await stream.send(Click("ann"))
        assert await client.flush() == []
        assert node.statistics().inputs["clicks"].admitted == 1


def test_a_client_takes_no_id_that_its_certificate_does_not_cover(issuer: Issuer) -> None:
    bank = issuer.credentials(BANK)
    with pytest.raises(ConfigError, match="take 'bank' or one that begins with 'bank/'"):
        Client("tls+tcp://127.0.0.1:1", producer="bank-1", credentials=bank)


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("producer", {"send"}),
        ("reader", {"read"}),
        ("operator", {"send", "read", "create", "trim", "drop"}),
        ("node", {"send", "read", "create", "trim", "drop"}),
    ],
)
async def test_a_role_may_do_what_the_table_says(
    issuer: Issuer, tmp_path: Path, role: str, may: set[str]
) -> None:
    async with log_node(tmp_path, settings=issuer.node()) as node:
        address = node.listener.address
        ops = issuer.credentials("s4://default/operator/ops")
        async with log_at(address, ops) as log:
            await log.create("taps")
            await log.create("old")
        me = issuer.credentials(f"s4://default/{role}/me")
        done, told = set(), ""
        async with Client(address, credentials=me) as client, log_at(address, me) as log:

            async def send() -> None:
                taps = await client.stream("taps", types=Tap)
                await taps.send(Tap("a"))
                await client.flush()

            async def read() -> None:
                async with client.subscribe("taps", start={0: 0}):
                    pass

            for name, request in {
                "send": send,
                "read": read,
                "create": partial(log.create, "mine"),
                "trim": partial(log.trim, "taps", offset=0),
                "drop": partial(log.ask, "drop", {"stream": "old"}),
            }.items():
                try:
                    await request()
                    done.add(name)
                except ConnectionRefused as error:
                    told += str(error)
        assert done == may
        assert told.count(f"s4://default/{role}/me may not ") == 5 - len(may)


# -- safe as it comes -----------------------------------------------------------------------------


async def test_a_node_that_others_reach_does_not_start_without_certificates() -> None:
    with pytest.raises(ConfigError, match=r"set s4\.access = open: then any program"):
        async with running(RecordingApp(), address="tcp://0.0.0.0:0"):
            raise AssertionError
    with pytest.raises(ConfigError, match=r"no certificate is given; set s4\.tls\.certificate"):
        Container(RecordingApp(), Config.from_values({"s4.listener.address": TLS}))


async def test_an_open_node_says_what_that_means() -> None:
    settings = {"s4.listener.address": "tcp://0.0.0.0:0", "s4.access": "open"}
    with capture_logs() as lines:
        async with running(RecordingApp(), settings):
            pass
    [told] = [line for line in lines if line["event"].startswith("s4.access is open")]
    assert "any program that reaches this address may read, send and delete" in told["event"]


def test_only_the_certificate_of_a_node_of_the_cluster_may_listen(issuer: Issuer) -> None:
    for identity in (BANK, "s4://other/node/node"):
        settings = {**issuer.files(identity), "s4.listener.address": TLS}
        with pytest.raises(ConfigError, match="may not serve as a node of cluster 'default'"):
            Container(RecordingApp(), Config.from_values(settings))


async def test_a_client_without_certificates_is_told_to_give_them(issuer: Issuer) -> None:
    async with running(RecordingApp(), issuer.node()) as node:
        with pytest.raises(ConfigError, match="no certificate is given"):
            async with Client(node.listener.address) as client:
                await client.stream("clicks")
        plain = node.listener.address.removeprefix("tls+")
        async with Client(plain, timeout=0.5) as client:
            with pytest.raises(ConnectionRefused):
                await client.stream("clicks")


# -- helpers --------------------------------------------------------------------------------------


@asynccontextmanager
async def log_at(address: str, credentials: Credentials) -> AsyncIterator[EmbeddedLog]:
    log = EmbeddedLog("log", address, timeout=10, credentials=credentials)
    with plain_errors():
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: log.run(task_status=task_status))
            yield log
            nursery.cancel_scope.cancel()


async def refused(issuer: Issuer, identity: str, hello: wire.Hello) -> str:
    """The answer of a node to the hello of a peer with this identity."""
    async with (
        running(RecordingApp(), issuer.node()) as node,
        issuer.peer(node.listener.address, identity) as peer,
    ):
        await peer.send_frames(hello)
        answer = await peer.receive_until(lambda header: isinstance(header, wire.Hello))
        assert isinstance(answer, wire.Hello)
        assert node.listener.counts["not permitted"] == 1
        return answer.error


def answer_to(address: str, files: tuple[str, ...]) -> str:
    """How a connection with a certificate and key, whatever they are, ends: an alert or a word."""
    host, _, port = address.removeprefix("tls+tcp://").rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if files:
        context.load_cert_chain(*files)
    said = b""
    with socket.create_connection((host, int(port)), 10) as raw:
        try:
            with context.wrap_socket(raw) as secured:
                while chunk := secured.recv(65536):
                    said += chunk
                    secured.sendall(b"\x00SP\x00\x00\x10\x00\x00" if said == chunk else b"")
        except ssl.SSLError as error:
            return (error.reason or "").rpartition("ALERT_")[2].lower().replace("_", " ")
        except OSError as error:
            return f"ends {said!r} {error}"
    return f"ends {said.decode(errors='replace')}"


def serial_of(address: str, credentials: Credentials) -> int:
    """The serial number of the certificate that a node shows."""
    host, _, port = address.removeprefix("tls+tcp://").rpartition(":")
    with credentials.dialled(socket.create_connection((host, int(port)), 10)) as secured:
        return credentials.peer_of(secured).serial
