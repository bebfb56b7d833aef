"""Who may ask a node how it is, and what is said about an address that does not lead to it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trio
from certificates import Issuer
from harness import ANY_PORT, DEADLINE, free_port, raw_peer

from s4node import Config, Credentials
from s4node.cluster.coordination.entries import NodeInfo
from s4node.cluster.node.container_status import ContainerStatus
from s4node.cluster.node.node_status import NodeStatus, ask_status
from s4node.cluster.node.redirector import Redirector
from s4node.errors import NodeUnreachable
from s4node.metrics.statistics import ContainerStatistics
from s4node.net.wire import frame as wire

CONTAINER = ContainerStatus("counter", "one", "v1", "running", 1, "tcp://127.0.0.1:1", 1)
STATUS = NodeStatus("one", "default", 1, "tcp://127.0.0.1:2", [CONTAINER], [])


@pytest.mark.parametrize("role", ["node", "operator"])
async def test_these_roles_may_ask_a_node_how_it_is(issuer: Issuer, role: str) -> None:
    async with node(**issuer.node()) as address:
        me = issuer.credentials(f"s4://default/{role}/me")
        assert await ask(address, me) == STATUS


@pytest.mark.parametrize("role", ["producer", "reader"])
async def test_other_roles_are_told_which_one_they_need(issuer: Issuer, role: str) -> None:
    async with node(**issuer.node()) as address:
        told = await refused(address, issuer.credentials(f"s4://default/{role}/me"))
    assert told.startswith(f"does not answer at {address}: s4://default/{role}/me may not ask how")
    assert told.endswith("this needs a certificate of the role node or operator")


async def test_who_has_no_certificate_is_told_what_to_set(issuer: Issuer) -> None:
    async with node(**issuer.node()) as address:
        told = await refused(address)
    assert told.startswith(
        f"is at {address}, which needs a certificate; give an operator's: s4.tls"
    )


async def test_without_certificates_any_program_may_ask() -> None:
    async with node() as address:
        assert await ask(address) == STATUS


async def test_an_address_where_nobody_listens_is_named_and_what_to_set() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    told = await refused(address)
    assert told.startswith(f"cannot be reached at {address} (Connection refused)")
    assert "set its s4.listener.advertise to a host, and a port, at which this machine" in told


async def test_an_address_where_nobody_answers_is_named_and_what_to_set() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        told = await refused(address, seconds=0.2)
    assert told == (
        f"did not answer within 0.2 s; it may be stopped, or {address} does not lead to it from "
        f"here: set its s4.listener.advertise to a host, and a port, at which this machine reaches "
        f"it"
    )


async def test_an_address_that_leads_to_another_node_is_no_answer() -> None:
    async with node() as address:
        told = await refused(address, name="two")
    assert told.startswith(f"does not answer at {address}: no node 'two' is here; give each node")


async def test_statistics_that_no_frame_holds_are_left_out() -> None:
    many = [ContainerStatistics(app="x" * (9 << 20))]
    async with node(lambda: NodeStatus("one", "default", 1, "", [CONTAINER], many)) as address:
        status = await ask(address)
    assert (status.containers, status.statistics) == ([CONTAINER], [])


async def test_a_status_is_not_made_anew_for_each_of_many_who_ask() -> None:
    made: list[NodeStatus] = []

    def make() -> NodeStatus:
        made.append(STATUS)
        return STATUS

    async with node(make) as address, raw_peer(address) as peer:
        await peer.send_frames(
            *(wire.Query(n, "node.status", {"node": "one"}) for n in range(1, 101))
        )
        await peer.receive_until(lambda each: isinstance(each, wire.Answer) and each.id == 100)
    assert len(made) < 50


# -- set-up ---------------------------------------------------------------------------------------


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "authority")


@asynccontextmanager
async def node(make: Callable[[], NodeStatus] = lambda: STATUS, **more: str) -> AsyncIterator[str]:
    """The address of the node ``one``, which says what ``make`` returns."""
    config = Config.from_values({"s4.listener.address": ANY_PORT, **more})
    made = Redirector(config, "one", lambda *_: (), make)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield made.address
        nursery.cancel_scope.cancel()


async def ask(
    address: str,
    credentials: Credentials | None = None,
    name: str = "one",
    seconds: float = DEADLINE,
) -> NodeStatus:
    return await ask_status(NodeInfo(name, "", 1, "", address), credentials, seconds)


async def refused(
    address: str,
    credentials: Credentials | None = None,
    name: str = "one",
    seconds: float = DEADLINE,
) -> str:
    with pytest.raises(NodeUnreachable) as raised:
        await ask(address, credentials, name, seconds)
    return str(raised.value)
