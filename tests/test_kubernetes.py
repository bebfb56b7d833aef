"""docker/kubernetes.yaml is what Kubernetes takes, and what the nodes take."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from certificates import Issuer
from harness import ANY_PORT, ROOT

from s4node import Config
from s4node.cli import drain
from s4node.cluster.node.node import Node
from s4node.config import settings
from s4node.http.routes import ROUTES
from s4node.http.site import server_of

DOCUMENTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "docker" / "kubernetes.yaml").read_text())
)


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (each for each in DOCUMENTS if each["kind"] == kind)
    return found


POD = of_kind("StatefulSet")["spec"]["template"]["spec"]
(NODE,) = POD["containers"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: one["kind"])
@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_takes_it_without_unknown_fields(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


async def test_a_node_takes_its_settings_and_serves_what_the_probes_ask_for(
    tmp_path: Path,
) -> None:
    file = tmp_path / "node.properties"
    text = of_kind("ConfigMap")["data"]["node.properties"]
    files = Issuer(tmp_path).files("s4://shop/node/s4")
    places = {"tls.crt": "certificate", "tls.key": "key", "ca.crt": "authority"}
    for name, setting in places.items():
        text = text.replace(f"/etc/s4-tls/{name}", files[f"s4.tls.{setting}"])
    file.write_text(text)
    words = (word.replace("$(NODE)", "s4-0") for word in NODE["args"])
    given = [word.removeprefix("-p") for word in words if word.startswith("-p")]
    config = Config.load([file], settings=[*given, "s4.cluster.name=shop"])
    ports = {each["name"]: each["containerPort"] for each in NODE["ports"]}
    for name, setting in (("http", settings.HTTP_ADDRESS), ("node", settings.LISTENER_ADDRESS)):
        assert config[setting].endswith(f":{ports[name]}")
    plain = {"s4.coordination.folder": str(tmp_path / "s4"), "s4.listener.address": ANY_PORT}
    server_of(Node(Config.from_values(plain), "s4-0"), config)  # raises unless it may serve there
    public = {route.path for route in ROUTES if not route.right}  # Kubernetes has no certificate
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert NODE[probe]["httpGet"]["path"] in public


def test_a_pod_has_time_to_drain_and_to_stop() -> None:
    command, config = NODE["lifecycle"]["preStop"]["exec"]["command"][2], Config.from_values({})
    words = shlex.split(command)
    assert words[:2] == ["s4", "drain"]
    parser = argparse.ArgumentParser()
    drain.arguments(parser)
    options = vars(parser.parse_args(words[2:3]))
    needed = options["timeout"] + config[settings.TASK_SHUTDOWN_MS]
    assert POD["terminationGracePeriodSeconds"] > needed
