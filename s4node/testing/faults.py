"""The faults of a test's cluster: what happens to its hosts, and when.

Rules
- A seed makes a schedule of faults, each with its begin and its end, so it can be printed, repeated
  and made shorter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Literal, NamedTuple, get_args

from s4node import failpoints

Kind = Literal[
    "stop",
    "kill process",
    "kill host",
    "lose host",
    "pause",
    "cut off",
    "cut apart",
    "hold",
    "slow",
    "lose coordination",
    "lose store",
    "doubt store",
    "full disk",
    "set clock",
    "drain",
]

KINDS: tuple[Kind, ...] = get_args(Kind)

OFTEN: tuple[Kind, ...] = (
    *("kill process", "kill host", "lose host", "pause", "cut apart", "hold", "slow"),
    *("lose coordination", "doubt store"),
)
"""The faults that break most beside another one."""

_BY_CHANCE = tuple(kind for kind in KINDS if kind != "drain") + OFTEN
"""The faults that a seed chooses from: a drain is asked for, and no fault."""

LOG = "log"
"""The host of the log."""

OF_PROCESSES: frozenset[Kind] = frozenset({"stop", "kill process", "pause"})
"""A fault of the processes of a host, or of one of them."""


_BETWEEN: tuple[Kind, ...] = ("cut apart", "hold")
_KILLS: tuple[Kind, ...] = ("kill process", "kill host", "lose host")


class Fault(NamedTuple):
    """A fault of ``host`` at a time, in seconds of the test's clock, and for how long.

    - ``stop``: its container stops in order, and starts again a second after it has ended.
    - ``kill process``: its process dies, and its session ends at once. It starts again a second
      later, from the folder as it was.
    - ``kill host``: as this, but its session ends after its timeout, and the host comes back at the
      end of the fault. ``lose host``: it comes back with an empty folder.
    - ``pause``: it stands still, as after a SIGSTOP.
    - ``cut off``: it reaches no other host. ``cut apart``: it does not reach ``other``, nor does
      that reach it.
    - ``hold``: what it sends to ``other`` arrives after the fault, though not the other way round.
      ``slow``: what it sends and gets takes a hundred times as long, up to 0.3 s.
    - ``lose coordination``, ``lose store``: it does not reach these. ``doubt store``: what it puts
      there is written, but it gets an error.
    - ``full disk``: it writes nothing into its folder, neither state nor a log.
    - ``drain``: its containers hand over their partitions, and get none until the end.
    - ``set clock``: its clock on the wall is that much ahead, until the end of the fault.

    A kill with a ``point`` happens when the process next passes this failpoint, if it does so
    before the end of the fault.
    """

    kind: Kind
    host: str
    at: float
    seconds: float
    other: str = ""
    point: str = ""

    @property
    def until(self) -> float:
        return self.at + self.seconds


def problem(fault: Fault, known: Collection[str]) -> str:
    """The reason why a fault cannot happen to the hosts or processes that are known, or empty."""
    if fault.kind not in KINDS:
        return f"no kind {fault.kind!r}; the kinds are {', '.join(KINDS)}"
    for name in (fault.host, fault.other):
        if name and name not in known:
            return f"no host {name!r}; the hosts are {', '.join(known)}"
    if fault.kind in _BETWEEN and not fault.other:
        return "give the other host"
    if fault.point and (fault.kind not in _KILLS or fault.point not in failpoints.POINTS):
        return f"no kill at a point {fault.point!r}; s4node.failpoints.POINTS has those of kills"
    return "" if fault.seconds >= 0 else f"it lasts {fault.seconds} s; give 0 or more"


def schedule(
    seed: str,
    hosts: Sequence[str],
    *,
    others: Sequence[str],
    count: int,
    start: float,
    seconds: float,
    session_seconds: float,
    points: Sequence[str],
) -> list[Fault]:
    """A schedule of ``count`` faults that begin within ``seconds`` after ``start``, by their begin.

    Half of them begin while the one that was chosen before goes on. Some kinds are chosen more
    often. If a host is killed or lost, sometimes all are, each by a fault of its own. Hosts are cut
    from ``others``. The ``points`` of the log are for its host.
    """
    chance = Random(seed)  # noqa: S311 - to be repeated
    found: list[Fault] = []
    for _ in range(count):
        kind = chance.choice(_BY_CHANCE)
        host = chance.choice(hosts)
        if host == LOG and kind == "lose host":
            kind = "kill host"  # what a log has acknowledged is on its disk alone
        other, point = "", ""
        if kind in ("cut apart", "hold"):
            rest = [each for each in others if each != host]
            if not rest:
                continue
            other = chance.choice(rest)
        if kind in ("kill process", "kill host") and chance.random() < 0.6:
            of_log = host == LOG
            point = chance.choice([each for each in points if each.startswith("log.") == of_log])
        at = start + round(chance.uniform(0, seconds), 3)
        if found and chance.random() < 0.5:
            at = min(round(chance.uniform(found[-1].at, found[-1].until), 3), start + seconds)
        longest = (2.5 if chance.random() < 0.5 else 0.5) * session_seconds
        ends = round(chance.uniform(0.05, longest), 3)
        every = kind in ("kill host", "lose host") and chance.random() < 0.25
        found += [
            Fault(kind, each, at, ends, other, point) for each in (hosts if every else [host])
        ]
    return sorted(found, key=lambda fault: fault.at)
