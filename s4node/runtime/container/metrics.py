"""The metrics of a container and its tasks, taken from its statistics. Pure.

Rules
- Nothing is counted for metrics alone: they are existing counts, under Apache Samza's names, or our
  own if it has none.
- Names with a system, stream and partition are ``<system>-<stream>-<partition>-<what>``.
- docs/metrics.md has every name; a test holds it to this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from s4node.metrics.listening import listening
from s4node.metrics.snapshot import MetricsSnapshot, Value
from s4node.metrics.statistics import (
    ContainerStatistics,
    OutboxStatistics,
    ProgressStatistics,
    TaskStatistics,
)

CONTAINER = "SamzaContainerMetrics"
TASK = "TaskInstanceMetrics"
CONSUMERS = "SystemConsumersMetrics"
PRODUCERS = "SystemProducersMetrics"
CHOOSER = "MessageChooserMetrics"
OFFSETS = "OffsetManagerMetrics"

_CALLS = ("commit", "window", "timer", "process")


def source_of(task: str) -> str:
    """The source of a task's metrics."""
    return f"TaskName-{task}"


def snapshots_of(
    container: str, statistics: ContainerStatistics, process: Mapping[str, Value]
) -> Iterator[MetricsSnapshot]:
    """The metrics of a container and its tasks; ``process`` are the metrics of its process."""
    groups = {
        CONTAINER: {**_container(statistics), **process},
        CONSUMERS: _consumers(statistics),
        PRODUCERS: _producers(statistics),
        CHOOSER: _chooser(statistics.tasks),
        OFFSETS: _offsets(statistics),
    }
    yield MetricsSnapshot(container, groups)
    for task in statistics.tasks:
        mine = [each for each in statistics.replay.progress if each.task == task.name]
        yield MetricsSnapshot(
            source_of(task.name),
            {
                TASK: _task(task, mine, statistics.outboxes),
                CHOOSER: _chooser([task]),
                OFFSETS: {
                    f"{_place(each)}-checkpointed-offset": each.committed
                    for each in mine
                    if each.committed is not None
                },
            },
        )


def _container(statistics: ContainerStatistics) -> dict[str, Value]:
    calls: Counter[str] = Counter()
    seconds: dict[str, float] = dict.fromkeys(_CALLS, 0.0)
    for task in statistics.tasks:
        calls.update(task.calls)
        for name in _CALLS:
            seconds[name] += task.seconds.get(name, 0.0)
    return {
        **dict(_called(calls, seconds)),
        "event-loop-utilization": round(statistics.utilization, 4),
        "event-loop-turns": statistics.turns,
        "container-running": int(any(task.in_flight for task in statistics.tasks)),
        "container-startup-time": round(statistics.started_after * 1000),
        "container-thread-pool-size": statistics.threads,
        "tasks": len(statistics.tasks),
        **listening(statistics.peers, statistics.published),
    }


def _called(calls: Mapping[str, int], seconds: Mapping[str, float]) -> Iterable[tuple[str, Value]]:
    for name in _CALLS:
        count = calls.get(name, 0)
        yield f"{name}-calls", count
        yield f"{name}-ns", round(seconds.get(name, 0.0) / count * 1e9) if count else 0


def _task(
    task: TaskStatistics,
    progress: Iterable[ProgressStatistics],
    outboxes: Iterable[OutboxStatistics],
) -> dict[str, Value]:
    ignored = sum(task.ignored.values())
    return {
        **dict(_called(task.calls, task.seconds)),
        "messages-actually-processed": task.processed - task.refused - ignored,
        "messages-refused": task.refused,
        "send-calls": task.sent,
        "pending-messages": task.pending,
        "messages-in-flight": task.in_flight,
        "outbox-messages": sum(each.depth for each in outboxes if each.task == task.name),
        "keys": sum(task.instances.values()),
        "open-windows": task.windows,
        "held-back-messages": task.held_back,
        "late-messages": sum(task.late.values()),
        **{f"{name}-late-messages": count for name, count in task.late.items()},
        **{
            f"{name}-watermark": round(at * 1000) for name, (at, _) in task.watermarks.items() if at
        },
        **{f"{name}-watermark-lag-ms": round(by * 1000) for name, by in task.behind.items()},
        **{f"{name}-ahead-ms": round(by * 1000) for name, (by, _) in task.ahead.items()},
        **{f"exception-ignored-{name}": count for name, count in task.ignored.items()},
        **{f"{_place(each)}-offset": each.offset for each in progress},
    }


def _consumers(statistics: ContainerStatistics) -> dict[str, Value]:
    values: dict[str, Value] = {
        "unprocessed-messages": sum(
            stage.depth for stage in statistics.stages if stage.stage == "stream"
        ),
        "shed-messages": sum(sum(stage.shed.values()) for stage in statistics.stages),
    }
    for name, stream in statistics.inputs.items():
        values[f"live-{name}-messages-admitted"] = stream.admitted
        values[f"live-{name}-messages-refused"] = stream.refused
        values[f"live-{name}-duplicates"] = stream.duplicates
    replay = statistics.replay
    values["deserialization error"] = sum(replay.rejected.values())
    values["messages-lost"] = sum(replay.lost.values())
    values["messages-left-out"] = sum(replay.left_out.values())
    values |= {f"{stream}-messages-left-out": count for stream, count in replay.left_out.items()}
    for each in replay.progress:
        if each.lag is not None:
            values[f"{_place(each)}-messages-behind-high-watermark"] = each.lag
    return values


def _producers(statistics: ContainerStatistics) -> dict[str, Value]:
    durable = [each for each in statistics.sent if statistics.grades.get(each) == "durable"]
    depths = dict.fromkeys(durable, 0)
    for each in statistics.outboxes:
        depths[each.stream] = depths.get(each.stream, 0) + each.depth
    unsendable = Counter(dict.fromkeys([*statistics.sent, *depths], 0))
    for streams in statistics.unsendable.values():
        unsendable.update(streams)
    return {
        "sends": sum(statistics.sent.values()),
        **{f"{stream}-sends": count for stream, count in statistics.sent.items()},
        "messages-dropped": sum(statistics.dropped.values()),
        **{f"{stream}-messages-dropped": count for stream, count in statistics.dropped.items()},
        "outbox-messages": sum(depths.values()),
        "outbox-bytes": sum(each.bytes for each in statistics.outboxes),
        **{f"{stream}-outbox-messages": depth for stream, depth in depths.items()},
        "messages-unsendable": sum(unsendable.values()),
        **{f"{stream}-messages-unsendable": count for stream, count in unsendable.items()},
    }


def _chooser(tasks: Iterable[TaskStatistics]) -> dict[str, Value]:
    lagging: Counter[str] = Counter()
    buffered = resets = 0
    for task in tasks:
        lagging.update(task.lagging)
        buffered += task.buffered
        resets += task.batch_resets
    return {
        "buffered-messages": buffered,
        "batch-resets": resets,
        "lagging-batch-streams": len(lagging),
        **{f"{name.replace('.', '-', 1)}-lagging-partitions": n for name, n in lagging.items()},
    }


def _offsets(statistics: ContainerStatistics) -> dict[str, Value]:
    return {
        "commits-written": statistics.replay.commits,
        "commit-exceptions": statistics.replay.failures,
    }


def _place(progress: ProgressStatistics) -> str:
    return f"{progress.system}-{progress.stream}-{progress.partition}"
