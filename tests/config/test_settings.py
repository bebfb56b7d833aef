"""The promises of the list of keys: which there are, their defaults, and what is said of each."""

from __future__ import annotations

import pytest
from harness import ROOT

from s4node.config import settings
from s4node.config.config import Config
from s4node.config.key import ConfigKey, Pattern, Setting, StageKey
from s4node.config.render import render


def test_the_list_has_these_keys_and_defaults() -> None:
    assert [(entry.name, entry.text) for entry in Config.from_values({}).items()] == [
        ("s4.cluster.name", "default"),
        ("s4.cluster.partitions", "1"),
        ("s4.hasher", "crc32m"),
        ("s4.cluster.gatherTimeout", "10000"),
        ("s4.cluster.stay", "0"),
        ("s4.node.zone", ""),
        ("s4.coordination", ""),
        ("s4.coordination.credentials", ""),
        ("s4.coordination.folder", "~/.s4node"),
        ("s4.session.timeout", "10000"),
        ("s4.listener.address", "tcp://127.0.0.1:12000"),
        ("s4.listener.advertise", ""),
        ("s4.listener.ports", ""),
        ("s4.access", "certificates"),
        ("s4.tls.certificate", ""),
        ("s4.tls.key", ""),
        ("s4.tls.authority", ""),
        ("s4.tls.revoked", ""),
        ("s4.listener.maxEnvelopeBytes", "16777216"),
        ("s4.listener.maxFrameBytes", "1048576"),
        ("s4.listener.maxConnections", "1024"),
        ("s4.listener.patience", "30000"),
        ("s4.deserializer.executor", "block"),
        ("s4.stream.executor", "block"),
        ("s4.sender.executor", "throttle"),
        ("s4.remoteSender.executor", "block"),
        ("s4.deserializer.workQueueSize", "100000"),
        ("s4.stream.workQueueSize", "10000"),
        ("s4.sender.workQueueSize", "10000"),
        ("s4.remoteSender.workQueueSize", "10000"),
        ("s4.deserializer.workQueueBytes", "67108864"),
        ("s4.stream.workQueueBytes", "16777216"),
        ("s4.sender.workQueueBytes", "67108864"),
        ("s4.remoteSender.workQueueBytes", "67108864"),
        ("s4.deserializer.maxRate", "200000"),
        ("s4.stream.maxRate", "200000"),
        ("s4.sender.maxRate", "200000"),
        ("s4.remoteSender.maxRate", "200000"),
        ("s4.stream.parallelism", "0"),
        ("s4.sender.maxFrameBytes", "262144"),
        ("s4.comm.timeout", "1000"),
        ("s4.producer.expiry", "3600000"),
        ("s4.adapter.output.stream", ""),
        ("task.broadcast.inputs", ""),
        ("job.systemstreampartition.grouper.factory", "by-partition"),
        ("job.container.count", "0"),
        ("task.chooser.class", "round-robin"),
        ("task.consumer.batch.size", "0"),
        ("task.max.concurrency", "1"),
        ("task.order", "arrival"),
        ("job.container.thread.pool.size", "0"),
        ("task.window.ms", "0"),
        ("task.commit.ms", "60000"),
        ("task.async.commit", "false"),
        ("task.callback.timeout.ms", "0"),
        ("task.ignored.exceptions", ""),
        ("task.inputs", ""),
        ("task.drop.deserialization.errors", "false"),
        ("task.dead.letter.stream", ""),
        ("job.coordinator.monitor-partition-change.frequency.ms", "300000"),
        ("s4.state.folder", "~/.s4node/state"),
        ("s4.state.url", ""),
        ("s4.state.adopt", "false"),
        ("s4.state.sync", "normal"),
        ("s4.state.checkpointInterval", "600000"),
        ("s4.state.restoreTime", "2000"),
        ("s4.state.standby", "0"),
        ("task.commit.timeout.ms", "1800000"),
        ("s4.step.maxEvents", "2048"),
        ("s4.watchdog.ms", "100"),
        ("task.shutdown.ms", "30000"),
        ("s4.container.startTimeout", "60000"),
        ("s4.container.pulseTimeout", "10000"),
        ("s4.container.restartDelay", "200"),
        ("container.lifecycle.listeners", ""),
        ("s4.log.folder", ""),
        ("s4.log.retention.ms", "604800000"),
        ("s4.log.quotaBytes", "0"),
        ("s4.log.maxPartitions", "512"),
        ("s4.log.staged.expiry", "86400000"),
        ("s4.log.sync", "normal"),
        ("metrics.reporters", ""),
        ("metrics.reporter.interval", "60000"),
        ("metrics.reporter.jsonl.file", ""),
        ("s4.http.address", ""),
        ("s4.http.tokens", ""),
        ("s4.logger_level", "info"),
        ("s4.logger_format", "auto"),
    ]


def test_the_list_has_these_families_of_keys() -> None:
    assert [key.name for key in settings.KEYS if isinstance(key, Pattern)] == [
        "s4.cluster.<cluster>.address",
        "s4.stream.<stream>.consumers",
        "s4.stream.<stream>.grade",
        "s4.app.<parameter>",
        "streams.<stream>.samza.priority",
        "streams.<stream>.samza.bootstrap",
        "systems.<system>.type",
        "systems.<system>.address",
        "systems.<system>.consumer.<option>",
        "systems.<system>.producer.<option>",
        "streams.<stream>.samza.physical.name",
        "streams.<stream>.samza.msg.serde",
        "streams.<stream>.record.key",
        "streams.<stream>.record.time",
        "streams.<stream>.record.headers",
        "streams.<stream>.tombstones",
        "streams.<stream>.routed",
        "streams.<stream>.samza.bounded",
        "streams.<stream>.samza.offset.default",
        "systems.<system>.samza.offset.default",
        "streams.<stream>.samza.reset.offset",
        "streams.<stream>.onLost",
        "s4.stream.<stream>.onError",
        "s4.stream.<stream>.heldBack",
        "s4.stream.<stream>.maxDrift",
    ]


def test_the_table_of_stages_has_these_rows_each_for_all_streams_or_one() -> None:
    rows = {key.name: tuple(key.of) for key in settings.KEYS if isinstance(key, StageKey)}
    every = ("deserializer", "stream", "sender", "remoteSender")
    assert rows == {
        "s4.<stage>.executor": every,
        "s4.<stage>.workQueueSize": every,
        "s4.<stage>.workQueueBytes": every,
        "s4.<stage>.maxRate": every,
        "s4.stream.parallelism": ("stream",),
    }
    config = Config.from_values({"s4.sender.clicks.executor": "shed"})
    setting, pattern = settings.STAGE_EXECUTOR.of["sender"]
    assert (config[setting], config.matching(pattern)) == ("throttle", {"clicks": "shed"})


def test_an_app_has_no_settings_of_machines_nodes_and_processes() -> None:
    """So they are not deployed with it."""
    found: dict[str, list[str]] = {}
    for key in settings.MEMBERS:
        if isinstance(key, Setting):
            found.setdefault(key.belongs_to, []).append(key.name)
    parts = ("s4.listener.", "s4.log.")
    assert [name for name in found["app"] if name.startswith(parts)] == []
    assert [name for name in found["node"] if not name.startswith(parts)] == [
        "s4.node.zone",
        "s4.http.address",
        "s4.http.tokens",
        "s4.logger_format",
    ]
    assert found["machine"] == ["s4.state.folder", "metrics.reporter.jsonl.file"]
    assert found["process"] == [
        "s4.cluster.name",
        "s4.coordination",
        "s4.coordination.credentials",
        "s4.coordination.folder",
        "s4.access",
        "s4.tls.certificate",
        "s4.tls.key",
        "s4.tls.authority",
        "s4.tls.revoked",
    ]


def test_milliseconds_are_seconds_in_code() -> None:
    config = Config.from_values({"s4.comm.timeout": "250", "s4.watchdog.ms": "0.5"})
    assert config[settings.COMM_TIMEOUT] == 0.25
    assert config[settings.WATCHDOG_MS] == 0.0005
    assert config[settings.PRODUCER_EXPIRY] == 3600.0


@pytest.mark.parametrize("key", settings.KEYS, ids=lambda key: key.name)
def test_every_key_is_documented_in_few_words(key: ConfigKey[object]) -> None:
    assert key.doc.endswith(".")
    assert 1 < len(key.doc.split()) <= 110


@pytest.mark.parametrize(
    "pattern", [key for key in settings.KEYS if isinstance(key, Pattern)], ids=lambda key: key.name
)
def test_the_example_of_every_family_is_one_that_loads(pattern: Pattern[object]) -> None:
    config = Config.from_values({pattern.example: pattern.text})
    assert list(config.matching(pattern).values()) == [pattern.parse(pattern.text)]


def test_the_file_at_the_top_level_is_the_rendered_one() -> None:
    assert RENDERED.read_text(encoding="utf-8") == render(), (
        "write the text of s4node.config.render.render() to default.s4.comm.properties"
    )


def test_loading_the_rendered_file_gives_the_defaults() -> None:
    loaded = [(e.name, e.text, e.value) for e in Config.load([RENDERED]).items()]
    assert loaded == [(e.name, e.text, e.value) for e in Config.from_values({}).items()]


def test_every_setting_stands_in_the_rendered_file_itself() -> None:
    origins = [entry.origin for entry in Config.load([RENDERED]).items()]
    assert all(origin.startswith(f"{RENDERED}:") for origin in origins)


def test_a_key_is_rendered_with_its_documentation_and_unit() -> None:
    assert render().endswith(
        """
# The least severe level that is logged.
# Value: one of debug, info, warning, error.
s4.logger_level = info

# console is for people, json is one JSON object per line. auto is console if
# stderr is a terminal, and json otherwise.
# Value: one of auto, console, json.
s4.logger_format = auto
"""
    )


def test_the_rendered_lines_fit_a_terminal() -> None:
    assert max(map(len, render().splitlines())) <= 78


def test_a_family_of_keys_is_rendered_as_a_commented_example() -> None:
    assert """
# Value: address tcp://host:port, port 1 to 65535.
# Key: s4.cluster.<cluster>.address; for example
# s4.cluster.east.address = tcp://127.0.0.1:12001
""" in render()


# -- set-up ---------------------------------------------------------------------------------------


RENDERED = ROOT / "default.s4.comm.properties"
