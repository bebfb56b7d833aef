"""The state of keys, as the owners of their tasks have it in their last commits.

Rules
- The containers of the app are asked at their addresses, all at the same time for a key: only its
  owner knows it. A page of keys begins with the first task; its cursor names a task and a row.
- 404: there is no such app, PE, store or key. 409: the app saves no state. 503: no container has
  the task now, or it is busy. Each container knows the partition of a key, so these name its owner.
"""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from s4node import threads
from s4node.errors import S4Error
from s4node.http.bodies import try_again
from s4node.http.messages import JSON, Answer, Request
from s4node.http.monitor import Owner, UnknownApp, Watched
from s4node.net.certificates.credentials import Credentials
from s4node.net.transport import probe
from s4node.net.wire import frame as wire
from s4node.net.wire.state_questions import (
    KEY,
    MOST_ROWS,
    NO_KEY,
    NO_STATE,
    NO_TABLE,
    NOT_HERE,
    PAGE,
)

_SECONDS = 10.0
_MOST_BYTES = 4 << 20
_AWAY = "the owner does not answer"
_NO_OWNER = "no node has its partition now"


class States:
    """Answers for the apps of what is ``watched``."""

    def __init__(self, watched: Watched, credentials: Credentials | None) -> None:
        self._watched = watched
        self._credentials = credentials
        self._threads = trio.CapacityLimiter(16)

    async def key(self, request: Request) -> Answer:
        """Everything that the app has saved of a key."""
        owners = await self._owners(request)
        if isinstance(owners, Answer):
            return owners
        asked = {"name": request.parameters["pe"], "key": request.parameters["key"]}
        found: list[tuple[dict[str, Any], str]] = []

        async def ask(address: str) -> None:
            found.append(await self._ask(address, KEY, asked))

        async with trio.open_nursery() as nursery:
            for address in {each.address for each in owners if each.address}:
                nursery.start_soon(ask, address)
        tasks: list[int] = next((v["tasks"] for v, _ in found if "tasks" in v), [])
        for values, error in found:
            if not error:
                (task,) = values["tasks"]
                owner = {"partition": task, "node": owners[task].node}
                text = f'{values["text"][:-1]},"owner":{msgspec.json.encode(owner).decode()}'
                return Answer(200, f'{text},"commit":{values["commit"]}}}', JSON)
        problems = sorted(
            (error for _, error in found), key=lambda each: (each == NOT_HERE, each == _AWAY)
        )
        where = " or ".join(
            f"partition {task}, which {'is on node ' + repr(node) if node else 'has no owner now'}"
            for task, (node, _) in enumerate(owners)
            if task in tasks
        )
        return _refusal(problems[0] if problems else NOT_HERE, where and f"; the key is of {where}")

    async def keys(self, request: Request) -> Answer:
        """A page of the keys of a PE or store."""
        owners = await self._owners(request)
        if isinstance(owners, Answer):
            return owners
        try:
            limit = int(request.query.get("limit", "100"))
            at, _, row = request.query.get("after", "").partition(".")
            task = int(at or 0)
            bytes.fromhex(row)
        except ValueError:
            limit = task = -1
        if not (1 <= limit <= MOST_ROWS and 0 <= task < max(1, len(owners))):
            return Answer(400, f"limit is 1 to {MOST_ROWS}, and after is that of the page before\n")
        rows: list[str] = []
        commits: list[str] = []
        size, known = 0, not owners
        while task < len(owners):
            asked = {"name": request.parameters["pe"], "task": task, "after": row}
            asked["most"] = limit - len(rows)
            values, error = await self._ask(owners[task].address, PAGE, asked)
            if not error:
                known = True
                rows += values["rows"]
                commits.append(values["commit"])
                size += sum(map(len, values["rows"]))
                row = values["after"]
            elif not error.startswith(NO_TABLE) or (task == len(owners) - 1 and not known):
                return _refusal(error)
            if not row:
                task += 1
            if len(rows) == limit or size > _MOST_BYTES:
                break
        after = f"{task}.{row}" if task < len(owners) else ""
        text = f'{{"keys":[{",".join(rows)}],"commits":[{",".join(commits)}],"after":"{after}"}}'
        return Answer(200, text, JSON)

    async def _owners(self, request: Request) -> list[Owner] | Answer:
        try:
            return await self._watched.owners(request.parameters["app"])
        except UnknownApp as error:
            return Answer(404, f"{error}\n")
        except S4Error as error:
            return try_again(503, str(error))

    async def _ask(
        self, address: str, question: str, asked: dict[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """The values of a container's answer, and the error."""
        if not address:
            return {}, NOT_HERE
        try:
            with trio.fail_after(_SECONDS):
                answer = await threads.run_sync(
                    probe.ask,
                    address,
                    question,
                    asked,
                    _SECONDS,
                    self._credentials,
                    abandon_on_cancel=True,
                    limiter=self._threads,
                )
        except (OSError, TimeoutError, trio.TooSlowError, S4Error):
            return {}, _AWAY
        if not isinstance(answer, wire.Answer):
            return {}, _AWAY
        return answer.values, answer.error


def _refusal(problem: str, where: str = "") -> Answer:
    if problem == NO_STATE:
        return Answer(409, f"the app saves no state{where}\n")
    if problem == NO_KEY or problem.startswith(NO_TABLE):
        text = "nothing is saved of this key" if problem == NO_KEY else problem
        return Answer(404, f"{text}{where}\n")
    return try_again(503, f"{_NO_OWNER if problem == NOT_HERE else problem}{where}")
