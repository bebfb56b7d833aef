"""The answers of a container to who asks for the state of its tasks.

Rules
- A question names a PE or store, and a key as text or JSON, or a task and the row after which to go
  on. Who has not got the task says so.
- State is that of the last commit, with its time and the offsets until which it counts. It is read
  in two threads beside the loop; more questions wait, up to a number.
- The questions are queries of the wire protocol, so they have the limits and roles of all peers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import trio

from s4node import threads
from s4node.errors import S4Error, StateError, StoreCorrupt
from s4node.events.keys import Key, Partitioner
from s4node.net.ingress.connection import Connection, Waker
from s4node.net.wire import frame as wire
from s4node.net.wire.state_questions import (
    BUSY,
    KEY,
    MOST_ROWS,
    NO_KEY,
    NO_STATE,
    NO_TABLE,
    NOT_HERE,
    PAGE,
)
from s4node.offsets.system import SystemStreamPartition
from s4node.runtime.commit.task_commit import TaskCommits
from s4node.state.browse import Committed, StateLookup
from s4node.state.job import checkpoint_of
from s4node.state.task_state import TaskState

_THREADS = 2
_MOST_WAITING = 64
_MOST_BYTES = 4 << 20
_COMMIT_SECONDS = 5.0
"""The time for a commit that is being written in pieces."""


class StateAnswers:
    """Answers for the tasks of ``commits``; keys are in the partitions of ``partitioner``."""

    def __init__(
        self,
        commits: Mapping[int, TaskCommits],
        partitioner: Partitioner,
        nursery: trio.Nursery,
        waker: Waker,
        *,
        keeps: bool,
    ) -> None:
        self._commits = commits
        self._partitioner = partitioner
        self._nursery = nursery
        self._waker = waker
        self._keeps = keeps
        self._threads = trio.CapacityLimiter(_THREADS)
        self._waiting = 0

    def on_query(self, header: wire.Query, connection: Connection) -> bool:
        """Answer a question for state, perhaps later; returns False if it is another."""
        if header.question not in (KEY, PAGE):
            return False
        if self._waiting >= _MOST_WAITING:
            connection.answer(wire.encode_frame(wire.Answer(header.id, {}, BUSY)))
        else:
            self._waiting += 1
            self._nursery.start_soon(self._reply, header, connection)
        return True

    async def _reply(self, query: wire.Query, connection: Connection) -> None:
        values: dict[str, Any] = {}
        error = ""
        try:
            values, error = await self._values(query)
        except (S4Error, ValueError) as failure:
            error = f"{failure}"
        finally:
            self._waiting -= 1
        if connection.live:
            connection.answer(wire.encode_frame(wire.Answer(query.id, values, error)))
            self._waker.nudge()

    async def _values(self, query: wire.Query) -> tuple[dict[str, Any], str]:
        asked = query.arguments
        name = str(asked.get("name", ""))
        if query.question == PAGE:
            if not self._keeps:
                return {}, NO_STATE
            after = bytes.fromhex(str(asked.get("after", "")))
            task, most = int(asked.get("task", 0)), int(asked.get("most", MOST_ROWS))
            found = await self._in_thread(task, _page, name, after, min(most, MOST_ROWS))
            return cast(tuple[dict[str, Any], str], found or ({}, NOT_HERE))
        tasks = {
            key: self._partitioner.partition_of(key) for key in _keys(str(asked.get("key", "")))
        }
        problem = NOT_HERE if self._keeps else NO_STATE
        for key, task in tasks.items() if self._keeps else ():
            found = await self._in_thread(task, _one, name, key)
            if found is not None and found[0]:
                return {**found[0], "tasks": [task]}, ""
            if found is not None:
                problem = found[1] or NO_KEY
        return {"tasks": sorted({*tasks.values()})}, problem

    async def _in_thread(self, task: int, read: Any, *arguments: Any) -> Any:
        commits = self._commits.get(task)
        if commits is None:
            return None
        database, hasher = commits.state.database, self._partitioner.hasher

        def in_thread() -> Any:
            with database.committed(_COMMIT_SECONDS) as held:
                rows = Committed(held)
                state = TaskState(cast(Any, rows), hasher)
                look = StateLookup(state, rows, hasher)
                if arguments[0] not in (*look.stores, *look.elements):
                    known = ", ".join(sorted({*look.stores, *look.elements})) or "nothing"
                    return {}, f"{NO_TABLE} {arguments[0]!r}: saved are {known}"
                return read(look, task, state, *arguments)

        try:
            return await threads.run_sync(in_thread, limiter=self._threads)
        except StoreCorrupt:
            raise
        except StateError:
            if self._commits.get(task) is not commits:  # it has just left
                return None
            raise


def _one(
    look: StateLookup, task: int, state: TaskState, name: str, key: Key
) -> tuple[dict[str, Any], str]:
    found = look.of_key(name, key)
    if not any(found):
        return {}, ""
    shown = {
        "key": key,
        "value": found.value[0] if found.value else None,
        "windows": [{"start": at, "value": each} for at, each in sorted(found.windows.items())],
        "timers": [{"name": each, "time": at} for each, at in sorted(found.timers.items())],
    }
    return {"text": _json(shown), "commit": _commit(task, state)}, ""


def _page(
    look: StateLookup, task: int, state: TaskState, name: str, after: bytes, most: int
) -> tuple[dict[str, Any], str]:
    shown, size, last = [], 0, b""
    for row, key, value in look.page(name, after, most):
        text = {"key": key, "value": value}
        if name in look.windowed:
            text = {"key": key[0], "window": key[1], "value": value}
        shown.append(_json(text))
        size += len(shown[-1])
        if size > _MOST_BYTES:
            last = row
            break
        last = row if len(shown) == most else b""
    return {"rows": shown, "after": last.hex(), "commit": _commit(task, state)}, ""


def _commit(task: int, state: TaskState) -> str:
    at = checkpoint_of(state)
    offsets = {str(SystemStreamPartition(*each)): n for each, n in sorted(at.offsets.items())}
    return _json({"task": task, "time": at.written_ms / 1000, "offsets": offsets})


def _keys(text: str) -> list[Key]:
    """The keys that a text may mean: itself, or what it is as JSON."""
    try:
        meant = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    if isinstance(meant, list) and meant and all(type(part) in (str, int) for part in meant):
        return [text, tuple(meant)]
    return [text, meant] if type(meant) is int or isinstance(meant, str) else [text]


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError):  # a map with keys that are no text
        return json.dumps(_plain(value), default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
