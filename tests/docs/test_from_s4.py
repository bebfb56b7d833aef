"""docs/from-s4.md names only what exists here, and leaves out nothing that S4 had."""

from __future__ import annotations

import re

from harness import ROOT

import s4node
from s4node.config.settings import MEMBERS


def test_every_key_of_ours_that_the_page_names_exists() -> None:
    known = {key.name for key in MEMBERS}
    named = {re.split(r"[ =]", span)[0] for span in OURS if re.match(r"(s4|task)\.", span)}

    assert len(named) > 10
    assert named - known == set()


def test_every_class_and_method_of_ours_that_the_page_names_exists() -> None:
    ours = [span for _, cells in rows("Classes") for span in spans(cells)]
    named = [span for span in ours if re.fullmatch(r"[A-Z]\w+(\.\w+)?", span)]

    assert len(named) > 20
    for name in named:
        cls, _, attribute = name.partition(".")
        found = getattr(s4node, cls)
        annotated = {a for base in found.__mro__ for a in vars(base).get("__annotations__", {})}
        made = attribute in ("parameters", "partitions", "clock")  # by the constructor of an App
        assert not attribute or hasattr(found, attribute) or attribute in annotated or made, name


def test_the_page_names_every_key_that_s4_had() -> None:
    theirs = {span for first, _ in rows("Configuration keys") for span in spans(first)}

    assert set(KEYS_OF_S4) - theirs == set()


def test_a_key_that_kept_its_name_stands_beside_itself() -> None:
    known = {key.name for key in MEMBERS}

    for first, ours in rows("Configuration keys"):
        for name in set(spans(first)) & known:
            assert name in spans(ours), f"{name} exists, and its row says: {ours}"


def test_the_page_names_every_command_that_s4_had() -> None:
    theirs = {span.split()[0] for first, _ in rows("Commands") for span in spans(first)}

    assert set(COMMANDS_OF_S4) - theirs == set()


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "from-s4.md").read_text()

KEYS_OF_S4 = [
    "s4.cluster.name", "s4.cluster.zk_address", "s4.cluster.zk_session_timeout",
    "s4.cluster.zk_connection_timeout", "s4.comm.emitter.class", "s4.comm.emitter.remote.class",
    "s4.comm.listener.class", "s4.comm.timeout", "s4.sender.parallelism", "s4.sender.workQueueSize",
    "s4.sender.maxRate", "s4.remoteSender.parallelism", "s4.remoteSender.workQueueSize",
    "s4.remoteSender.maxRate", "s4.emitter.maxPendingWrites", "s4.stream.workQueueSize",
    "s4.listener.maxEventsPerDeserializer", "s4.listener.maxMemoryPerChannel",
    "s4.listener.maxMemoryPerExecutor", "s4.logger_level", "s4.metrics.config",
    "s4.metrics.peProcessingTime", "s4.tmp.dir", "s4.adapter.output.stream",
    "s4.checkpointing.filesystem.storageRootPath", "s4.checkpointing.serializationMaxThreads",
    "s4.checkpointing.serializationThreadKeepAliveSeconds",
    "s4.checkpointing.serializationMaxOutstandingRequests", "s4.checkpointing.storageMaxThreads",
    "s4.checkpointing.storageThreadKeepAliveSeconds",
    "s4.checkpointing.storageMaxOutstandingRequests", "s4.checkpointing.fetchingMaxThreads",
    "s4.checkpointing.fetchingThreadKeepAliveSeconds", "s4.checkpointing.fetchingQueueSize",
    "s4.checkpointing.fetchingMaxWaitMs",
    "s4.checkpointing.fetchingMaxConsecutiveFailuresBeforeDisabling",
    "s4.checkpointing.fetchingDisabledDurationMs", "s4.checkpointing.maxSerializationLockTime",
    "s4.benchmark.testIterations", "s4.benchmark.keysCount", "s4.benchmark.pauseTimeMs",
    "s4.benchmark.injector.iterationsBeforePause", "s4.benchmark.injector.parallelism",
]  # fmt: skip

COMMANDS_OF_S4 = ["newApp", "zkServer", "newCluster", "node", "adapter", "s4r", "deploy", "status"]


def rows(heading: str) -> list[tuple[str, str]]:
    """The table below a heading: what S4 had, and the other cells as one text."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return [(first, " | ".join(rest)) for first, *rest in cells]


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


TABLES = ("What to watch when you port an app", "Classes", "Commands", "Configuration keys")

OURS = [span for table in TABLES for _, ours in rows(table) for span in spans(ours)]
