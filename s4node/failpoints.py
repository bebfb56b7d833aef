"""Points at which a process can be told to die, for tests of what remains.

``S4_FAULT=name`` in the environment kills the process with SIGKILL at that point,
``S4_FAULT=name:3`` at the third passing. With ``@FILE`` at the end it happens once: the process
that creates the file dies, and a process that finds the file lives.

Rules
- All points are in ``POINTS``, in the order in which they are passed; another name is a mistake.
- Without ``S4_FAULT`` a point costs one call of an empty function. None is passed once an event.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable

from s4node.errors import ConfigError

VARIABLE = "S4_FAULT"

POINTS = {
    "startpoint.fan": "the job starts, and what was asked for is not given to its tasks yet",
    "startpoint.fanning": "it is being given to them, in one transaction",
    "startpoint.fanned": "it is given to them, and no task is claimed yet",
    "claim.begin": "a task is about to be taken over, and nobody knows",
    "claim.fenced": "the one before is fenced, and there is no folder yet",
    "ship.claimed": "where state is shipped to, the one before is fenced as well",
    "claim.copy": "the folder is there, and nothing in it",
    "claim.copied": "all is in it, and it is not yet known to be whole",
    "claim.whole": "the database is open and counts, what is older has not been removed",
    "startpoint.taken": "a task has got its startpoint, and has read nothing",
    "commit.begin": "what belongs to a commit is taken, and nothing is encoded",
    "commit.encoded": "it is encoded, and the claim was not looked at again",
    "commit.write": "the claim holds, and nothing is written",
    "ship.put": "where commits are shipped, it is about to be put there",
    "ship.there": "it is there, and nobody has looked whether another is the owner by now",
    "ship.counts": "it counts, and is not in the database of this node",
    "pieces.prepared": "a commit of many rows is in the database twice over, and does not count",
    "pieces.count": "it counts, and none of its rows is where it belongs",
    "pieces.piece": "some of its rows are where they belong",
    "pieces.done": "all are, and nothing says so",
    "commit.written": "it is written, and nobody knows",
    "outbox.release": "it is still the owner's, and what the task has put for others has not left",
    "outbox.released": "it leaves, and nobody else has it",
    "outbox.settled": "who has got it has committed it, and its rows are still there",
    "commit.told": "all know that it is written; in a clean stop, nothing is left to do",
    "checkpoint.made": "a checkpoint is copied, and not yet known to be whole",
    "checkpoint.kept": "it counts, and older ones have not been removed",
    "ship.files": "the files of a checkpoint are shipped, and nothing says so",
    "ship.manifest": "the manifest says so, and nothing that is old has been removed",
    "startpoint.consumed": "what a commit has consumed is about to be removed",
    "startpoint.removed": "it is removed, and the next commit is to say so",
    "log.append": "events have come to a log, and are not written",
    "log.appended": "they are written, and their producer does not know",
}
"""What has happened when a point is passed, and what has not."""


def point(text: str) -> Callable[[str], None]:
    """What is called at each point, for the value of ``S4_FAULT``; raises ConfigError."""
    if not text:
        return _pass
    text, _, file = text.partition("@")
    name, colon, times = text.partition(":")
    if name not in POINTS:
        raise ConfigError(f"{VARIABLE}: no point {name!r}; known are {', '.join(POINTS)}")
    if colon and not (times.isdecimal() and int(times)):
        raise ConfigError(f"{VARIABLE}: {times!r} is not a number of passings; write {name}:3")
    last = int(times or 1)
    count = itertools.count(1)  # one step also for threads

    def die(passed: str) -> None:
        if passed == name and next(count) >= last and _first(file):
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def _pass(_: str) -> None:
    """Go on."""


def _first(file: str) -> bool:
    if not file:
        return True
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


passing = point(os.environ.get(VARIABLE, ""))
"""Call it with the name of the point."""
