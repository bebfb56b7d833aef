"""An app on a node: the version that is wanted there, and the one that runs."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from s4node.cluster.coordination.entries import AppInfo
from s4node.cluster.node.supervisor import ContainerProcess


@dataclass
class Post:
    app: str
    wanted: AppInfo | None = None
    running: AppInfo | None = None
    process: ContainerProcess | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    known: AppInfo | None = None  # the version that has these streams
    failure: str = ""
    paused: bool = False
    changed: trio.Event = field(default_factory=trio.Event)

    def change(self) -> None:
        """Wake the task that looks after the app."""
        self.changed.set()
        self.changed = trio.Event()

    def learn(self) -> None:
        """Learn the app's streams, once one of its processes has reported them."""
        prepared = self.process.prepared if self.process is not None else None
        if prepared is not None:
            self.inputs, self.outputs = tuple(prepared.inputs), tuple(prepared.outputs)
            self.known = self.running
