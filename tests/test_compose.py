"""The Compose file: what it names is there, and nodes share nothing but ZooKeeper and a URL."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from harness import ROOT

from s4node.config import settings
from s4node.config.config import Config

DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
NODES = ("node1", "node2", "node3", "spare")


def mounts(service: str) -> list[tuple[str, str, bool]]:
    """The mounts of a service: from where, at which path, and if only to read."""
    found = (each.split(":") for each in SERVICES[service]["volumes"])
    return [(source, path, mode == ["ro"]) for source, path, *mode in found]


@pytest.mark.parametrize("service", NODES)
def test_what_a_node_can_write_is_its_own(service: str) -> None:
    assert SERVICES[service]["read_only"]
    written = {source for source, _, read_only in mounts(service) if not read_only}
    assert written == {service}
    others = {source for name in SERVICES if name != service for source, _, _ in mounts(name)}
    assert not written & others


@pytest.mark.parametrize("service", [*NODES, "adapter", "flights-job", "prometheus"])
def test_a_certificate_is_mounted_by_its_holder_only(service: str) -> None:
    (own,) = (source for source, path, _ in mounts(service) if path == "/certs")
    holders = {name for name in SERVICES for source, _, _ in mounts(name) if source == own}
    assert holders == {service, "certs"}
    assert f"/{service}" in SERVICES["certs"]["command"][0]


def test_the_credentials_of_zookeeper_are_mounted_by_the_nodes_of_demo_only() -> None:
    held = {name: [source for source, _, _ in mounts(name)] for name in SERVICES}
    holders = {name for name, sources in held.items() if "coordination" in sources}
    assert holders == {*NODES, "certs"}


@pytest.mark.parametrize("service", NODES)
def test_a_node_can_read_its_settings_and_finds_the_servers_that_they_name(service: str) -> None:
    inside = {path: DOCKER / source for source, path, _ in mounts(service)}
    given = [each.split("=", 1)[1] for each in SERVICES[service]["command"] if "--config" in each]
    files = [inside[name if name.startswith("/") else f"/srv/{name}"] for name in given]
    config = Config.load(files)
    hosts = config[settings.COORDINATION].removeprefix("zk://").split("/")[0].split(",")
    assert {host.split(":")[0] for host in hosts} == {"zoo1", "zoo2", "zoo3"} <= set(SERVICES)
    assert SERVICES[service]["environment"]["AWS_ENDPOINT_URL"] == "http://store:7070"
    assert config[settings.STATE_URL].startswith("s3://state/")


def test_prometheus_asks_every_node_where_it_answers() -> None:
    found = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    (job,) = found["scrape_configs"]
    (targets,) = (each["targets"] for each in job["static_configs"])
    assert targets == [f"{name}:9404" for name in NODES]
    answers = Config.load([DOCKER / "demo.properties"])[settings.HTTP_ADDRESS]
    assert str(answers).endswith(":9404")


def test_every_volume_that_is_named_is_declared() -> None:
    named = {source for name in SERVICES for source, _, _ in mounts(name) if "/" not in source}
    assert named == set(COMPOSE["volumes"])
