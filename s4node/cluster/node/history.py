"""The history of the apps of a cluster, as a node sees it: deployments, failures and moves. Pure.

Rules
- The last hundred are kept, in the memory of each node. Nodes see the same deployments and moves,
  and each its own containers.
- A partition has *failed over* if its former owner is no member any more; else it has moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from s4node.cluster.coordination.assignment import Key, Owner
from s4node.cluster.coordination.entries import AppInfo, Group
from s4node.cluster.node.container_status import ContainerStatus

MOST = 100

DEPLOYMENT, RESTART, FAILOVER, MOVE = "deployment", "restart", "failover", "move"


class Happening(msgspec.Struct, frozen=True):
    """Something that has happened to an app at a time (Unix time, ms), and the cause if known."""

    ms: int
    app: str
    kind: str
    text: str
    cause: str = ""


class History:
    def __init__(self) -> None:
        self.last: deque[Happening] = deque(maxlen=MOST)
        self._owners: dict[str, Sequence[Owner]] = {}
        self._begun = False
        self._versions: dict[str, tuple[str, str, str]] = {}

    def failed_once(self, one: ContainerStatus, *, is_new: bool = False) -> None:
        """Note the failure of a container; one that ``is_new`` has not run its version yet."""
        if one.failure and not any(
            (each.ms, each.app, each.cause) == (one.failed_ms, one.app, one.failure)
            for each in self.last
        ):
            kind, text = RESTART, f"the container on {one.node} ended"
            if is_new:
                kind, text = DEPLOYMENT, f"version {one.version} cannot run on {one.node}"
            self.last.append(Happening(one.failed_ms, one.app, kind, text, one.failure))

    def seen(self, ms: int, apps: Mapping[str, AppInfo], groups: Mapping[str, Group]) -> None:
        first, self._begun = not self._begun, True
        for name in sorted({*apps, *self._versions}):
            info = apps.get(name)
            now = ("", "", "") if info is None else (info.package, info.version, info.state)
            was = self._versions.get(name, ("", "", ""))
            self._versions[name] = now
            if now != was and not (first and now[2] == "running"):
                text = "was removed" if info is None else _change(was, now)
                self.last.append(Happening(ms, name, DEPLOYMENT, text))
        for name, group in groups.items():
            self._moved(ms, name, group)

    def _moved(self, ms: int, app: str, group: Group) -> None:
        owners = group.assignment.value.owners if group.assignment else ()
        before, self._owners[app] = self._owners.get(app, ()), owners
        living = {each.key for each in group.candidates}
        moves: dict[tuple[Key, Key], list[int]] = {}
        for partition, (was, now) in enumerate(zip(before, owners, strict=False)):
            if was.key != now.key and was.member and now.member:
                moves.setdefault((was.key, now.key), []).append(partition)
        for (was_key, now_key), partitions in moves.items():
            away = was_key not in living
            cause = f"{was_key[1]} has left or failed" if away else ""
            text = f"{_listed(partitions)} of {was_key[1]} went to {now_key[1]}"
            self.last.append(Happening(ms, app, FAILOVER if away else MOVE, text, cause))


def _change(was: tuple[str, str, str], now: tuple[str, str, str]) -> str:
    if now[0] == was[0] and now[2] != was[2]:
        return f"is to be {now[2]}" if now[2] != "running" else "runs again"
    return f"version {now[1]} replaces {was[1]}" if was[1] else f"version {now[1]} is deployed"


def _listed(partitions: Sequence[int]) -> str:
    shown = ", ".join(map(str, partitions[:20]))
    more = f" and {len(partitions) - 20} more" if len(partitions) > 20 else ""
    return f"partition{'s' if len(partitions) > 1 else ''} {shown}{more}"
