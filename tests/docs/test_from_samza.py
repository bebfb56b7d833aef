"""docs/from-samza.md names only what exists here, and leaves out nothing that Samza has."""

from __future__ import annotations

import re

from harness import ROOT

import s4node
from s4node.config.settings import MEMBERS


def test_every_key_of_ours_that_the_page_names_exists() -> None:
    known = {key.name for key in MEMBERS}
    headings = ("What is different", "Classes", "Configuration keys")
    named = {span for heading in headings for span in ours(heading)}
    keys = {re.split(r"[ =]", span)[0] for span in named if re.match(r"[a-z0-9]+\.[\w.<>]+", span)}
    keys -= {"s4node.offsets.system", "s4node.testing.AppTest"}

    assert len(keys) > 20
    assert sorted(keys - known) == []


def test_a_key_that_kept_its_name_stands_beside_itself() -> None:
    known = {key.name for key in MEMBERS}

    for first, middle, _ in rows("Configuration keys"):
        for name in set(spans(first)) & known:
            assert name in spans(middle), f"{name} exists, and its row says: {middle}"


def test_the_page_names_every_key_that_samza_has() -> None:
    assert sorted(set(KEYS_OF_SAMZA.split()) - theirs("Configuration keys")) == []


def test_every_class_of_ours_that_the_page_names_exists() -> None:
    named = [span for span in ours("Classes") if re.fullmatch(r"[A-Z]\w+(\.\w+)?", span)]

    assert len(named) > 20
    for name in named:
        cls, _, attribute = name.partition(".")
        found = getattr(s4node, cls)
        assert not attribute or hasattr(found, attribute), name


def test_every_metric_that_is_the_same_or_ours_is_measured() -> None:
    for first, middle, _ in rows("Metrics"):
        names = spans(first) if middle == "the same" else spans(middle)
        assert [name for name in names if f"`{name}`" not in METRICS] == []


def test_a_metric_that_is_said_to_be_missing_is_not_measured() -> None:
    for first, middle, _ in rows("Metrics"):
        if middle == NOTHING:
            assert [name for name in spans(first) if f"`{name}`" in METRICS] == []


def test_the_page_names_every_metric_that_samza_has() -> None:
    assert sorted(set(METRICS_OF_SAMZA.split()) - theirs("Metrics")) == []


def test_every_thing_that_is_missing_is_explained() -> None:
    for heading in ("Classes", "Configuration keys", "Metrics"):
        for first, middle, notes in rows(heading):
            assert middle != NOTHING or notes, first


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "from-samza.md").read_text()

NOTHING = "\N{EN DASH}"

METRICS = (ROOT / "docs" / "metrics.md").read_text()

KEYS_OF_SAMZA = """
    job.name job.id app.class task.class job.factory.class job.default.system
    job.container.count job.container.thread.pool.size job.container.commit.thread.pool.size
    job.container.commit.thread.pool.max.size job.container.task.executor.factory
    job.systemstreampartition.grouper.factory job.systemstreampartition.input.expansion.enabled
    task.name.grouper.factory job.coordinator.monitor-partition-change.frequency.ms
    job.checkpoint.validation.enabled job.startpoint.enabled job.host-affinity.enabled
    job.standbytasks.replication.factor job.elasticity.factor job.drain-monitor.enabled
    task.inputs task.broadcast.inputs task.max.concurrency task.window.ms task.commit.ms
    task.async.commit task.commit.max.delay.ms task.commit.timeout.ms
    task.commit.skip.commit.during.failures.enabled task.commit.skip.commit.exception.max.limit
    task.commit.skip.commit.timeout.max.limit task.callback.timeout.ms
    task.callback.watermark.timeout.ms task.callback.drain.timeout.ms task.max.idle.ms
    task.poll.interval.ms task.shutdown.ms task.ignored.exceptions
    task.drop.deserialization.errors task.drop.serialization.errors task.drop.producer.errors
    task.chooser.class task.consumer.batch.size task.checkpoint.factory
    task.checkpoint.write.versions task.checkpoint.read.versions task.live.checkpoint.max.age
    task.transactional.state.checkpoint.enabled task.transactional.state.restore.enabled
    task.transactional.state.retain.existing.state systems.S.samza.offset.default
    systems.S.samza.fetch.threshold systems.S.samza.fetch.threshold.bytes
    streams.ID.samza.offset.default streams.ID.samza.reset.offset streams.ID.samza.priority
    streams.ID.samza.bootstrap streams.ID.samza.broadcast container.disk.quota.bytes
    container.disk.poll.interval.ms container.disk.quota.delay.max.ms metrics.timer.enabled
"""

METRICS_OF_SAMZA = """
    commit-calls window-calls timer-calls process-calls process-envelopes process-null-envelopes
    skipped-envelopes choose-ns window-ns timer-ns process-ns commit-ns block-ns
    event-loop-utilization container-startup-time container-running container-thread-pool-size
    container-active-threads disk-usage-bytes disk-quota-bytes executor-work-factor
    physical-memory-mb physical-memory-utilization total-process-cpu-usage <task>-restore-time
    messages-actually-processed send-calls flush-calls pending-messages messages-in-flight
    async-callback-complete-calls commits-timed-out commits-skipped commit-exceptions
    commit-sync-ns commit-async-ns last-commit-ns last-async-commit-timestamp snapshot-ns
    store-checkpoint-ns async-upload-ns async-cleanup-ns <system>-<stream>-<partition>-offset
    exception-ignored-<class> chose-null chose-object poll-ns deserialization-ns
    ssps-needed-by-chooser poll-timeout unprocessed-messages <system>-polls
    <system>-ssp-fetches-per-poll <system>-messages-per-poll
    <system>-<stream>-<partition>-messages-chosen sends flushes <source>-sends <source>-flushes
    buffered-messages batch-resets batched-envelopes lagging-batch-streams
    <system>-<stream>-lagging-partitions <system>-<stream>-<partition>-checkpointed-offset
    poll-count buffered-message-count-<ssp> buffered-message-size-<ssp> no-more-messages-<ssp>
    blocking-poll-count-<ssp> <system>-<stream>-<partition>-messages-behind-high-watermark
    messages-read bytes-read
"""


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def theirs(heading: str) -> set[str]:
    return {span for row in rows(heading) for span in spans(row[0])}


def ours(heading: str) -> list[str]:
    return [span for row in rows(heading) for span in spans(row[1])]
