"""Where others are told to connect: not always where a node listens."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from harness import free_port, plain_errors, running
from shared_apps import Click, Count, OnePE

from s4node import Client, Config, Container
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.node.redirector import Redirector
from s4node.cluster.tree.folder import FolderCoordination
from s4node.errors import ConfigError


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
async def test_the_port_that_was_taken_is_told_with_the_host_that_was_given(host: str) -> None:
    settings = {"s4.listener.advertise": host}
    async with running(OnePE(Count), settings | OPEN, address=ALL_INTERFACES) as container:
        before, _, port = container.address.rpartition(":")
        assert before == f"tcp://{host}"
        assert int(port) > 0


async def test_another_port_is_told_for_a_node_that_has_one_of_its_own() -> None:
    port = free_port()
    settings = {"s4.listener.advertise": "node1:22000"}
    async with running(OnePE(Count), settings, address=f"tcp://127.0.0.1:{port}") as container:
        assert container.address == "tcp://node1:22000"
    async with running(OnePE(Count), settings, address="tcp://127.0.0.1:0") as container:
        assert container.address.startswith("tcp://node1:")
        assert not container.address.endswith(":22000")


async def test_containers_take_ports_from_a_range_until_all_are_taken() -> None:
    first = free_port()
    settings = {"s4.listener.ports": f"{first}-{first}"}
    async with running(OnePE(Count), settings, address="tcp://127.0.0.1:0") as container:
        assert container.address == f"tcp://127.0.0.1:{first}"
        with pytest.raises(ConfigError, match="are taken on 127"), plain_errors():
            await Container(
                OnePE(Count),
                Config.from_values(settings | {"s4.listener.address": "tcp://127.0.0.1:0"}),
            ).run()


async def test_members_find_each_other_by_the_hosts_that_they_advertise(tmp_path: Path) -> None:
    coordination = FolderCoordination(tmp_path, session_timeout=5)
    settings = {
        "s4.listener.address": ALL_INTERFACES,
        **OPEN,
        "s4.listener.advertise": "localhost",
        "s4.cluster.partitions": "8",
    }
    with plain_errors(), trio.fail_after(30):
        async with (
            coordination.session("a") as one,
            coordination.session("b") as other,
            trio.open_nursery() as nursery,
        ):
            containers = []
            for name, session in (("a", one), ("b", other)):
                enrolment = Enrolment(session, "default", "app", name, 2)
                config = Config.from_values(settings)
                containers.append(Container(OnePE(Count), config, node=name, enrolment=enrolment))
            for container in containers:
                nursery.start_soon(container.run)
            for container in containers:
                await container.ready.wait()
            async with Client(containers[0].address) as client:
                clicks = await client.stream("clicks")
                for n in range(40):
                    await clicks.send(Click(f"n{n}"))
                assert await clicks.flush() == []
            counted = [container.statistics().processed for container in containers]
            for container in containers:
                container.stop()

    assert sum(counted) == 40
    assert min(counted) > 0


async def test_a_member_that_listens_on_all_interfaces_needs_a_host_to_tell(
    tmp_path: Path,
) -> None:
    coordination = FolderCoordination(tmp_path, session_timeout=5)
    for address in (ALL_INTERFACES, "tcp://[::]:0"):
        config = Config.from_values({"s4.listener.address": address, **OPEN})
        message = f"s4.listener.address = '{address}' means all interfaces.*s4.listener.advertise"
        message = message.replace("[", r"\[")
        async with coordination.session("a") as session:
            enrolment = Enrolment(session, "default", "app", "a", 1)
            with pytest.raises(ConfigError, match=message), plain_errors():
                await Container(OnePE(Count), config, enrolment=enrolment).run()
        with pytest.raises(ConfigError, match=message):
            Redirector(config, "a", lambda stream, reads: ())


@pytest.mark.parametrize("host", ["tcp://node1", "node1:x", "two words", "::1"])
def test_a_value_that_is_not_a_host_name_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"s4\.listener\.advertise = '.*' is not a host name"):
        Config.from_values({"s4.listener.advertise": host})


# -- set-up ---------------------------------------------------------------------------------------


ALL_INTERFACES = "tcp://0.0.0.0:0"
OPEN = {"s4.access": "open"}
