"""The reasons that hold up an app: the rules of ``s4 why``. Pure.

Rules
- Two snapshots, some seconds apart, are compared. A rule gives a reason with its figure, and what
  to do. Rules are asked in the order of ``RULES``: what stops an app comes before what slows it.
- A PE, a key or a busy machine holds an app up only if one of its containers works for most of the
  time, or one of its stages is full. Otherwise they are just its work. Commits hold it up if they
  take most of a task's time.
- At most three reasons are given for an app. Without any, nothing holds it up: no events wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from s4node.deploy.cluster_snapshot import (
    FULL,
    OF_APPS,
    OF_NODES,
    PeRow,
    Row,
    Snapshot,
    bottleneck_of,
    duration,
)

MOST = 3

_BUSY = 0.8
"""The part of its time from which on a container has none left."""

_SHARE = 0.3
"""The part of the time, of the events or of a task, that is worth a reason."""

_LONG_COMMIT = 0.1
"""Seconds from which on a commit is long; shorter ones may follow each other all the time."""

_SILENT_SECONDS = 5.0
"""Seconds for which a watermark stands still behind events that come, or an input is late."""

_CALM_SECONDS = 60.0
"""Seconds for which a container has run whose failures are over."""

_WAIT_SECONDS = 1.0
"""Seconds that events have waited which is long if nothing is slow."""

_TASK = re.compile(r"@~[^/]*/(.+)/Partition (\d+)#")
"""The app and the partition of a task that is a source."""


Found: TypeAlias = Iterator[tuple[str, str]]
"""The texts of reasons, each with what to do."""


class Reason(msgspec.Struct, frozen=True):
    """A reason why an app is held up, with its figure; and what to ``do``."""

    app: str
    rule: str
    text: str
    do: str


class AppReasons(msgspec.Struct, frozen=True):
    """The reasons that hold up an app of a cluster; ``busy`` is the part of the time that its
    busiest container worked."""

    cluster: str
    app: str
    busy: float
    reasons: list[Reason]


class Look:
    """An app in the ``seconds`` between two snapshots."""

    def __init__(self, app: str, now: Snapshot, before: Snapshot) -> None:
        self.app = app
        self.now, self.before = _of_app(app, now), _of_app(app, before)
        self.seconds = max(1e-3, now.time - before.time)
        self.stages = self.now.stages
        earlier = {row.node: row for row in self.before.work}
        self.tasks = 0
        self.spent: dict[str, float] = {}
        self.commits, self.commit_seconds = 0, 0.0
        self.busy = self.waited = self.load = 0.0
        """Of the container that works most: parts of the time in which it works, and waits for a
        processor; and the load of its machine."""
        for row in self.now.work:
            was = earlier.get(row.node)
            spent = _gained(row.seconds, was.seconds if was else {})
            for kind, seconds in spent.items():
                self.spent[kind] = self.spent.get(kind, 0.0) + seconds
            if was is not None and row.commits >= was.commits:
                self.commits += row.commits - was.commits
                self.commit_seconds += row.commit_seconds - was.commit_seconds
            self.tasks += row.tasks
            # a step that began before counts at its end
            worked = sum(each for kind, each in spent.items() if kind != "commit")
            counted = row.up_seconds - (was.up_seconds if was else 0.0)
            seconds = counted if counted > 0 else self.seconds
            busy = min(1.0, worked / seconds)
            if busy >= self.busy:
                waited = row.waited_seconds - (was.waited_seconds if was else 0.0)
                self.busy, self.waited, self.load = busy, max(0.0, waited) / seconds, row.load

    @property
    def held_up(self) -> bool:
        full = (row.executor != "throttle" and row.fullest >= FULL for row in self.stages)
        return self.busy >= _BUSY or any(full)

    def pes(self) -> list[PeRow]:
        """The handlers that were called meanwhile, by their time."""
        earlier = {(row.pe, row.handler): row for row in self.before.pes}
        found = []
        for row in self.now.pes:
            was = earlier.get((row.pe, row.handler))
            if was is not None and was.calls <= row.calls:
                row = msgspec.structs.replace(
                    row, seconds=row.seconds - was.seconds, calls=row.calls - was.calls
                )
            if row.calls > 0:
                found.append(row)
        return sorted(found, key=lambda row: -row.seconds)

    def was(self, row: Row) -> Row:
        """The row of a stage before; the same if there was none."""
        place = row.stage, row.stream
        before = (was for was in self.before.stages if (was.stage, was.stream) == place)
        return next(before, row)

    def comes(self, stream: str) -> bool:
        rows = (row for row in self.stages if row.stream == stream)
        return any(row.admitted > self.was(row).admitted for row in rows)


def _of_app(app: str, snapshot: Snapshot) -> Snapshot:
    kinds = (*OF_APPS, *OF_NODES)
    rows = {kind: [row for row in getattr(snapshot, kind) if row.app == app] for kind in kinds}
    return msgspec.structs.replace(snapshot, **rows)


def _gained(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """The counts of the time between; all of it if the counts began anew."""
    return {k: n - before.get(k, 0.0) if n >= before.get(k, 0.0) else n for k, n in now.items()}


def _not_running(look: Look) -> Found:
    row = next((row for row in look.now.apps if row.name == look.app), None)
    if row is None:
        return
    up = {each.node: each.up_seconds for each in look.now.work}
    failed = [
        each
        for node in look.now.nodes
        for each in node.containers
        if each.app == look.app and each.failure and up.get(node.name, 0.0) < _CALM_SECONDS
    ]
    text, do = f"it is {row.state}", "wait, or see the log of its node"
    if row.state == "ended":
        text, do = "its containers have ended", "deploy it again to go on, or undeploy it"
    if failed:
        last = max(failed, key=lambda each: each.failed_ms)
        text += f", after {last.starts} starts on {last.node!r}" if last.starts > 1 else ""
        text, do = f"{text}; its last failure: {last.failure}", "repair what the failure names"
    if failed or row.state != "running":
        yield text, do


def _nodes_away(look: Look) -> Found:
    members = {each for row in look.now.apps if row.name == look.app for each in row.members}
    for node in look.now.nodes:
        if node.problem and node.name in members:
            text = f"node {node.name!r} {node.problem}"
            yield text, "see whether its process or its machine hangs"


def _failing(look: Look) -> Found:
    for row in look.now.failing:
        who = f"{len(row.tasks)} tasks" if row.tasks else "a container"
        text = f"{who} cannot commit or start, and try again: {row.reason}"
        yield text, "repair what the reason names; nothing is lost"


def _system_away(look: Look) -> Found:
    for row in look.now.away:
        written = (each for each in look.now.outboxes if each.consumer == row.system)
        waiting = sum(each.depth for each in written)
        text = f"system {row.system!r}: {row.reason}"
        text += f"; {waiting:,} records for it wait" if waiting else ""
        yield text, f"start it again, or correct systems.{row.system}.address; nothing is lost"


def _open_transaction(look: Look) -> Found:
    for row in look.now.inputs:
        if row.uncommitted:
            text = (
                f"a transaction that its producer has not ended holds up input {row.input!r}: "
                f"{row.uncommitted:,} records are behind it"
            )
            do = "end that producer: the app's log names it; or wait until the brokers abort it"
            yield text, do


def _restoring(look: Look) -> Found:
    if rows := look.now.restoring:
        fetched, wanted = sum(r.fetched for r in rows), sum(r.wanted for r in rows)
        text = f"{len(rows)} tasks fetch their state: {fetched:,} of at most {wanted:,} objects"
        yield text, "wait; with s4.state.standby it takes less"


def _receiver_away(look: Look) -> Found:
    away = {row.name for row in look.now.apps if row.state != "running" or not row.members}
    for row in look.now.outboxes:
        name = row.consumer.rpartition(".")[2]
        if row.depth and name in away:
            text = (
                f"{row.depth:,} events of stream {row.stream!r} wait for app {name!r}: it is away"
            )
            yield text, f"start {name!r} again, or take it out of the stream's consumers"


def _machine_busy(look: Look) -> Found:
    if look.held_up and look.waited >= _SHARE:
        text = (
            f"the machine is busy with other work: the container waits for a processor for "
            f"{min(look.waited, 1.0):.0%} of the time, and the load is {look.load:.1f} by core"
        )
        yield text, "stop other programs there, or move the app to another machine"


def _commits(look: Look) -> Found:
    count, seconds = look.commits, look.commit_seconds
    part = min(1.0, seconds / look.seconds / max(1, look.tasks))
    if count and part >= _BUSY and seconds / count >= _LONG_COMMIT:
        text = (
            f"commits take {part:.0%} of the time of a task: {count} of "
            f"{duration(seconds / count)} on average"
        )
        yield text, "put the state on a faster disk or URL, or change less state with each event"


def _slow_pe(look: Look) -> Found:
    found = look.pes() if look.held_up else []
    total = sum(row.seconds for row in found)
    if not total or found[0].seconds / look.seconds < _SHARE:
        return
    slowest = found[0]
    text = (
        f"PE {slowest.pe!r} takes {slowest.seconds / total:.0%} of the time of all PEs: a call of "
        f"{slowest.handler} takes {duration(slowest.seconds / slowest.calls)}"
    )
    yield text, f"make {slowest.handler} quicker, or give the app more partitions and containers"


def _hot_key(look: Look) -> Found:
    if not look.held_up:
        return
    parts = [
        (events / row.calls, key, row.pe)
        for row in look.now.pes
        if row.calls
        for key, events in row.hot.items()
    ]
    part, key, pe = max(parts, default=(0.0, "", ""))
    if part >= _SHARE:
        text = f"key {key!r} has {min(part, 1.0):.0%} of the events of PE {pe!r}, for one instance"
        yield text, "split the key by a part of the event, and add up in a second PE"


def _watermark(look: Look) -> Found:
    if not any(row.windows for row in look.now.windows):
        return
    earlier = {row.stream: row for row in look.before.watermarks}
    parts = {row.partition: row for row in look.now.partitions}
    live = [(row.at, row.stream) for row in look.now.watermarks if look.comes(row.stream)]
    latest, other = max(live, default=(0.0, ""))
    found: list[tuple[bool, tuple[str, str]]] = []
    for row in look.now.watermarks:
        was = earlier.get(row.stream)
        if was is None or was.at != row.at or not row.holding:
            continue
        behind, of = row.behind, "its latest event"
        if not look.comes(row.stream):  # windows over several streams wait for this one
            behind, of = latest - (row.at or latest), f"that of stream {other!r}"
        if behind >= _SILENT_SECONDS or (not row.at and look.comes(row.stream)):
            who = row.holding
            do = "have that source send, report its watermark or end; or give the stream idle="
            task = _TASK.search(who)
            own = task is not None and task[1] == look.app
            part = parts.get(int(task[2])) if task and own else None
            if task:
                who = f"partition {task[2]} of app {task[1]!r}"
                do = "see s4 status" if own else f"see s4 why {task[1]}"
            if part is not None:
                who += f" on node {part.node!r}"
            if part is not None and part.pending:
                who += f", which has {part.pending:,} events to process"
                who += f"; key {part.hot!r} has {part.part:.0%}" if part.part >= _SHARE else ""
                do = "make its PEs quicker, or split its hottest key; s4 status has both"
            text = (
                f"the watermark of stream {row.stream!r} stands {behind:.0f} s behind {of}: it "
                f"waits for {who}"
            )
            found.append((own, (text, do)))
    # a task of the app may only wait for what is another of these reasons
    yield from [reason for own, reason in found if not own] or [reason for _, reason in found]


def _inputs_wait(look: Look) -> Found:
    for row in look.now.windows:
        if row.waiting:
            text = f"{', '.join(row.waiting)}: further in time than slower inputs, so it waits"
            yield text, "see why the other inputs are slow or silent"


def _full_stage(look: Look) -> Found:
    text = bottleneck_of(look.stages)
    if text:
        do = "make what takes its events quicker, or give the app more partitions and containers"
        yield text, do


def _events_wait(look: Look) -> Found:
    do = "see what its handlers await, and its rate if it throttles: s4 status has the stages"
    for row in look.stages:
        was = look.was(row)
        stuck = row is not was and row.admitted - row.depth == was.admitted - was.depth
        if row.depth and was.depth and (stuck or row.waited_last >= _WAIT_SECONDS):
            text = f"{row.depth:,} events of {row.stage} {row.stream!r} wait; "
            if stuck:
                text += f"none was done in {look.seconds:.0f} s"
            else:
                text += f"the last ones did so for {duration(row.waited_last)}"
            yield text, do
    for one in look.now.inputs:
        if one.lag and one.late >= _SILENT_SECONDS:
            text = (
                f"{one.lag:,} events of input {one.input!r} wait, the oldest for {one.late:.0f} s"
            )
            yield text, "wait, if it catches up: s4 status has its lag"


RULES: Mapping[str, Callable[[Look], Found]] = {
    "not-running": _not_running,
    "node-away": _nodes_away,
    "failing": _failing,
    "system-away": _system_away,
    "open-transaction": _open_transaction,
    "restoring": _restoring,
    "receiver-away": _receiver_away,
    "machine-busy": _machine_busy,
    "commits": _commits,
    "slow-pe": _slow_pe,
    "hot-key": _hot_key,
    "watermark": _watermark,
    "ahead": _inputs_wait,
    "full": _full_stage,
    "waiting": _events_wait,
}


def reasons_of(app: str, now: Snapshot, before: Snapshot) -> list[Reason]:
    """The reasons that hold up ``app``, the most important one first; empty if nothing does.

    That a stage is full, or events wait, is a reason only if no other one is found.
    """
    look = Look(app, now, before)
    found = [Reason(app, name, *each) for name, rule in RULES.items() for each in rule(look)]
    causes = [reason for reason in found if reason.rule not in ("full", "waiting")]
    return (causes or found)[:MOST]


def of_apps(now: Snapshot, before: Snapshot) -> list[AppReasons]:
    return [
        AppReasons(now.cluster, row.name, Look(row.name, now, before).busy, reasons)
        for row in now.apps
        for reasons in (reasons_of(row.name, now, before),)
    ]
