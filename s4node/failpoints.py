"""Failpoints: places where a test can have the process die, or a folder copied.

``S4_FAULT=name`` in the environment kills the process with SIGKILL at that point,
``S4_FAULT=name:3`` when it passes the point for the third time. With ``@FILE`` at the end it
happens once: the process that creates the file dies, and a process that finds the file lives.

``S4_FAULT=name>FOLDER>COPY`` kills no process: whenever the point is passed, COPY becomes a copy of
FOLDER. So at ``disk.synced`` the copy has what a power cut would leave.

Rules
- All points are in ``POINTS``, in the order in which they are passed; any other name is a mistake.
- Without ``S4_FAULT`` a point costs one call of an empty function. No point is passed for each
  event.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from s4node.errors import ConfigError

VARIABLE = "S4_FAULT"

POINTS = {
    "startpoint.fan": "the job starts, and requested startpoints are not given to its tasks yet",
    "startpoint.fanning": "they are being given to the tasks, in one write",
    "startpoint.fanned": "they are given to the tasks, and no task is claimed yet",
    "claim.begin": "a task is about to be claimed, and nothing is written",
    "claim.fenced": "its former owner is fenced, and the new folder does not exist",
    "ship.claimed": "its former owner is fenced where state is shipped, too",
    "claim.copy": "the new folder exists and is empty",
    "claim.copied": "the new folder is complete, and not marked as complete",
    "claim.whole": "the database is open and counts, and older ones are not removed",
    "startpoint.taken": "a task has got its startpoint, and has read nothing",
    "commit.begin": "the content of a commit is taken, and nothing is encoded",
    "commit.encoded": "the commit is encoded, and the claim is not checked again",
    "commit.write": "the claim is valid, and nothing is written",
    "ship.put": "a commit is about to be put where state is shipped",
    "ship.counts": "the commit counts, and is not in the database of this node",
    "disk.write": "a file, or rows of a database, are about to be written",
    "pieces.prepared": "a commit of many rows is in the database twice, and does not count",
    "pieces.count": "the commit counts, and none of its rows is in its place",
    "pieces.piece": "some of its rows are in their places",
    "pieces.done": "all of its rows are in their places, and this is not recorded",
    "commit.written": "the commit is written, and not acknowledged",
    "outbox.release": "the claim is still valid, and events for others have not left",
    "outbox.released": "events for others leave, and no other process has them",
    "outbox.settled": "their receiver has committed them, and their rows are still here",
    "outlet.open": "a receiver is about to be opened, and its former owner is not fenced",
    "outlet.opened": "the former owner is fenced, and the marker is not read",
    "outlet.begun": "a transaction has begun, and has no records",
    "outlet.sent": "its records are being sent, and it is not committed",
    "outlet.published": "it is committed, and its sender does not know that",
    "outlet.settled": "its sender does, and the rows are still here",
    "savepoint.cut": "the commit that is a task's cut is acknowledged; its copy is not made",
    "savepoint.kept": "the copy is made, and not reported",
    "commit.acknowledged": "the commit is acknowledged; in a clean stop, nothing is left to do",
    "savepoint.asked": "a command has asked for a savepoint, and no container knows it",
    "savepoint.due": "a container has asked its tasks for their cuts",
    "savepoint.cuts": "all tasks have reported their cuts, and there is no manifest",
    "savepoint.manifest": "the manifest is written, and the savepoint has not its name",
    "savepoint.named": "the savepoint has its name, and its request is still there",
    "export.written": "a savepoint is in a file that has not its name",
    "import.copied": "an imported savepoint is here and checked, and has no manifest",
    "restore.begun": "a job says that it is restored in part, and none of its tasks is",
    "restore.task": "a task is about to be restored",
    "restore.claimed": "its former owner is fenced, and its copy of the savepoint does not count",
    "restore.commit": "what changes in a restored task is about to be written",
    "restore.written": "a task is restored",
    "restore.done": "all tasks are restored, and the job still says that some are not",
    "repartition.moved": "the rows of a task of the new layout are in its database",
    "repartition.made": "all tasks of the new layout are on disk, and nothing says so",
    "repartition.decided": "they will replace the former ones, which are still in their place",
    "repartition.removed": "the former ones are out of the way, and nothing is in their place",
    "repartition.replaced": "the new ones are in their place, and the job does not know of them",
    "repartition.claimed": "it does, and what is left of the former ones is not removed",
    "deploy.repartitioned": "a deployed app has its new tasks, and its nodes do not know of them",
    "checkpoint.made": "a checkpoint is copied, and not marked as complete",
    "checkpoint.kept": "the checkpoint counts, and older ones are not removed",
    "ship.files": "the files of a checkpoint are shipped, and no entry of the log names them",
    "ship.checkpoint": "an entry of the log names them, and old objects are not removed",
    "standby.fetched": "a standby has the files of a checkpoint, and none of the commits after it",
    "standby.filled": "its folder is as of the end of the log, and it has followed nothing yet",
    "standby.found": "commits have been followed to the end of the log, and none is written",
    "standby.written": "they are in the database of the standby",
    "standby.finished": "the folder has all up to the new owner's claim, which is not in it",
    "startpoint.consumed": "a startpoint that a commit has consumed is about to be removed",
    "startpoint.removed": "the startpoint is removed, and the next commit does not say so yet",
    "log.append": "events have arrived at a log, and are not written",
    "log.appended": "they are written, and not acknowledged",
    "sink.staged": "a batch of a sink is staged and counted, and its decision is not written",
    "sink.decided": "the decision is written, and nothing is carried into the stream",
    "sink.piece": "a piece of the batch is in the stream, and the next one is not",
    "sink.carried": "the batch is in the stream, and this is not recorded",
    "sink.done": "this is recorded, and the staged rows are not removed",
    "sink.answer": "they are removed, and the sink does not know that the batch is published",
    "disk.synced": "data is on disk, and its writer does not know it yet",
    "replay.sent": "the event of a dead letter is sent again, and no mark says so",
}
"""For each point, what has happened when it is passed, and what has not."""


def point(text: str) -> Callable[[str], None]:
    """The function for all points, given the value of ``S4_FAULT``; raises ConfigError."""
    if not text:
        return _pass
    place, copies, folders = text.partition(">")
    place, _, file = place.partition("@")
    name, colon, times = place.partition(":")
    if name not in POINTS:
        raise ConfigError(f"{VARIABLE}: no point {name!r}; the points are {', '.join(POINTS)}")
    if colon and not (times.isdecimal() and int(times)):
        raise ConfigError(f"{VARIABLE}: {times!r} is not a positive number; write {name}:3")
    if copies:
        return _copying(name, text, *map(Path, folders.split(">")))
    last = int(times or 1)
    count = itertools.count(1)  # atomic for threads

    def die(passed: str) -> None:
        if passed == name and next(count) >= last and _first(file):
            os.kill(os.getpid(), signal.SIGKILL)

    return die


_COPY = """
used=$(grep -lzFx -- "$1" /proc/[0-9]*/environ 2>/dev/null | tr -cd '0-9\\n')
trap 'kill -CONT $used' EXIT
kill -STOP $used
while grep -qs '^State:.[RS]' $(printf '/proc/%s/task/*/status ' $used); do sleep 0.005; done
cp -a -- "$2" "$3"
"""
"""A shell's program: all processes with the line $1 in their environment rest for a copy of $2. A
thread in a call to the disk (D) is not waited for: nobody knows yet that it has written."""


def _copying(name: str, text: str, folder: Path, copy: Path) -> Callable[[str], None]:
    """Copies a folder whenever the point is passed; ``copy`` links to the last complete copy.

    The processes that use the folder take turns. All of them rest meanwhile, for nothing that one
    of them has written may be missing beside what it wrote after that. Another process copies: if
    one that uses a SQLite file opened it once more, it would lose its locks when it closes it.
    """
    lock = threading.Lock()
    turns = copy.with_suffix(".turns")
    rest = {each: value for each, value in os.environ.items() if each != VARIABLE}
    ours = f"{VARIABLE}={text}"

    def take(passed: str) -> None:
        if passed != name or not folder.exists():
            return
        with lock, turns.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last = copy.resolve()
            for left in copy.parent.glob(f"{copy.name}-*"):  # of a process that was killed midway
                if left != last:
                    shutil.rmtree(left, ignore_errors=True)
            new, link = copy.with_name(f"{copy.name}-{uuid4()}"), copy.with_suffix(".link")
            command: list[str | Path] = ["sh", "-c", _COPY, "sh", ours, folder, new]
            while subprocess.run(
                command, env=rest, stderr=subprocess.DEVNULL, start_new_session=True, check=False
            ).returncode:
                shutil.rmtree(new, ignore_errors=True)  # a command removed a file meanwhile
            link.unlink(missing_ok=True)
            link.symlink_to(new.name)
            link.replace(copy)

    return take


def _pass(_: str) -> None:
    """Do nothing."""


def _first(file: str) -> bool:
    if not file:
        return True
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


_act = point(os.environ.get(VARIABLE, ""))


def passing(name: str) -> None:
    _act(name)


@contextmanager
def replaced(act: Callable[[str], None]) -> Iterator[None]:
    """Call ``act`` with the name of each point that is passed in the block."""
    global _act
    before, _act = _act, act
    try:
        yield
    finally:
        _act = before
