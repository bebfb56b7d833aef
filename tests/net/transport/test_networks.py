"""The promises of a network, of TCP and of the one in memory."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest
import trio
from certificates import Issuer
from harness import free_port, until
from lanes import Changes

from s4node import Credentials
from s4node.net.transport.accepted_socket import Accepting
from s4node.net.transport.network import AcceptedPipe, DialledPipe, Network, Pipe, Tcp
from s4node.net.transport.pair_socket import PairSocket
from s4node.net.transport.sp_socket import PipeOwner
from s4node.net.transport.tls_socket import TlsSocket
from s4node.testing.memory_network import MemoryNetwork
from s4node.testing.runs import Runs


class Tls(Tcp):
    """TCP with TLS, whatever is given."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:  # what was loaded stays in use
            self._node = Issuer(Path(folder)).credentials("s4://default/node/node")

    async def listen(self, host: str, port: int, _: Credentials | None) -> list[Accepting]:
        return await super().listen(host, port, self._node)

    def dial(
        self, address: str, most: int, owner: PipeOwner, _: Credentials | None
    ) -> PairSocket | TlsSocket:
        return super().dial(f"tls+{address}", most, owner, self._node)


class InOneRun(MemoryNetwork):
    """The network in memory, both ends of which are in the run of the test."""

    def __init__(self) -> None:
        super().__init__(Runs(Random(0)))

    async def run(self) -> None:
        while True:
            self.runs.now = trio.current_time()
            while self.runs.turn():
                pass
            await trio.sleep(0.001)


both = pytest.mark.parametrize("make", [Tcp, Tls, InOneRun])


@both
async def test_envelopes_arrive_whole_and_in_order_both_ways(make: Callable[[], Network]) -> None:
    envelopes = [bytes([n % 256]) * (n * 37 + 1) for n in range(100)]
    async with connected(make) as ends:
        assert ends.near.connected
        assert ends.far.connected
        for one, other in ((ends.near, ends.far), (ends.far, ends.near)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sent, one, envelopes)
                assert await received(other, len(envelopes)) == envelopes
            assert other.receive_nowait() is None


@both
async def test_a_peer_whose_other_end_does_not_read_can_send_a_bounded_number_of_envelopes(
    make: Callable[[], Network],
) -> None:
    envelope = b"x" * (MOST // 2)
    async with connected(make) as ends:
        count = 0
        while count < 1000:
            if ends.near.send_nowait(envelope):
                count += 1
                continue
            with trio.move_on_after(0.2) as patience:
                await ends.near.wait_writable()
            if patience.cancelled_caught:
                break
        assert count < 1000
        assert await received(ends.far, count) == [envelope] * count
        await sent(ends.near, [b"more"])
        assert await received(ends.far, 1) == [b"more"]


@both
async def test_the_side_that_dialled_is_told_of_a_loss_and_connects_again(
    make: Callable[[], Network],
) -> None:
    async with connected(make) as ends:
        await ends.far.close()
        await until(lambda: ends.told_now() == [True, False, True], "it is connected again")
        await until(lambda: len(ends.served) == 2 and ends.notices(True))
        await sent(ends.near, [b"again"])
        assert await received(ends.far, 1) == [b"again"]


@both
async def test_the_side_that_was_dialled_is_told_of_the_end(make: Callable[[], Network]) -> None:
    async with connected(make) as ends:
        await ends.near.close()
        await until(lambda: ends.notices(False), "its peer has gone")
        assert ends.told_there == [True, False]
        assert not ends.far.connected


async def test_connections_that_their_peer_resets_at_once_are_no_errors_of_who_dials(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Changes()

    async def reset(peer: trio.SocketStream) -> None:
        await peer.send_all(b"\0SP\0\0\x10\0\0")
        await peer.receive_some(8)
        peer.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
        await peer.aclose()

    async with trio.open_nursery() as nursery:
        [place] = await trio.open_tcp_listeners(0, host=HOST)
        nursery.start_soon(trio.serve_listeners, reset, [place])
        address = f"tcp://{HOST}:{place.socket.getsockname()[1]}"
        near = Tcp().dial(address, MOST, told, None)
        nursery.start_soon(near.run)
        await until(lambda: told.count(False) == 3)
        await near.close()
        nursery.cancel_scope.cancel()
    assert caplog.messages == []


@both
async def test_closing_ends_every_wait(make: Callable[[], Network]) -> None:
    async with connected(make) as ends:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await ends.near.wait_readable()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await ends.near.close()
        await ends.near.close()


@both
async def test_looking_where_nobody_listens_says_so(make: Callable[[], Network]) -> None:
    with pytest.raises(OSError, match=r"refused|no listener"):
        await make().probe(f"tcp://{HOST}:{free_port()}", 1, None)


async def test_a_host_that_is_cut_off_reaches_nobody_until_it_is_back() -> None:
    async with connected(InOneRun) as ends:
        network = ends.near._network  # type: ignore[attr-defined]
        network.cut(HOST)
        assert ends.told_now() == [True, False]
        assert not ends.near.send_nowait(b"lost")
        tries = ends.near._tries  # type: ignore[attr-defined]
        await until(lambda: ends.near._tries > tries + 1)  # type: ignore[attr-defined]
        assert ends.told_now() == [True, False]
        network.heal(HOST)
        await until(lambda: ends.told_now() == [True, False, True])


# -- set-up ---------------------------------------------------------------------------------------


MOST = 1 << 20

HOST = "127.0.0.1"


class Ends:
    """A place that serves all who come, and one who dials it."""

    def __init__(self) -> None:
        self.near: DialledPipe
        self.served: list[AcceptedPipe] = []
        self.told = Changes()  # to who dials
        self.told_there = Changes()

    @property
    def far(self) -> AcceptedPipe:
        """The end of who came last."""
        return self.served[-1]

    def told_now(self) -> list[bool]:
        """The changes reported at the dialling end, after both ends have looked for envelopes."""
        for end in (*self.served[-1:], self.near):
            assert end.receive_nowait() is None
        return self.told

    def notices(self, connected: bool) -> bool:
        """Return True if that end says so; it notices both when it looks for envelopes."""
        return (
            bool(self.served)
            and self.far.receive_nowait() is None
            and self.told_there[-1:] == [connected]
        )

    async def serve(self, network: Network, port: int, status: trio.TaskStatus[int]) -> None:
        [place] = await network.listen(HOST, port, None)
        status.started(place.port)
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    caller = await place.accept()
                    if caller is not None:
                        self.served.append(caller.make_pipe(MOST, self.told_there))
                        nursery.start_soon(self.send_rest, self.far)
            finally:
                place.close()

    async def send_rest(self, end: AcceptedPipe) -> None:
        with suppress(trio.ClosedResourceError):
            await end.send_rest()


@asynccontextmanager
async def connected(make: Callable[[], Network]) -> AsyncIterator[Ends]:
    network, ends = make(), Ends()
    async with trio.open_nursery() as nursery:
        if isinstance(network, InOneRun):
            nursery.start_soon(network.run)
        port: int = await nursery.start(lambda task_status: ends.serve(network, 0, task_status))
        ends.near = network.dial(f"tcp://{HOST}:{port}", MOST, ends.told, None)
        nursery.start_soon(ends.near.run)
        await until(lambda: ends.told_now() and ends.notices(True), "both are told")
        yield ends
        for end in (ends.near, *ends.served):
            await end.close()
        nursery.cancel_scope.cancel()


async def received(end: Pipe, count: int) -> list[bytes]:
    """This many envelopes."""
    found: list[bytes] = []
    with trio.fail_after(10):
        while len(found) < count:
            await end.wait_readable()
            data = end.receive_nowait()
            if data is not None:
                found.append(data)
    return found


async def sent(end: Pipe, envelopes: list[bytes]) -> None:
    with trio.fail_after(10):
        for each in envelopes:
            while not end.send_nowait(each):
                await end.wait_writable()
