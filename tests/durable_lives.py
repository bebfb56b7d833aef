"""A node in a process of its own whose app counts the events of a durable stream, in order."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from harness import NodeProcess, free_port, s4_process
from saved_state import saved_instances, saved_producers

USERS = 13

# counts in its state, and says so when an event of a key is not the next one
COUNTING = """
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int

class Count(ProcessingElement):
    clicks: int = 0
    wrong: int = 0

    def on_event(self, event: Click) -> None:
        self.wrong += event.number != self.clicks
        self.clicks += 1

class Clicks(App):
    def on_init(self) -> None:
        self.create_input_stream("clicks", self.create_pe(Count), key="user")

app = Clicks("counting")
"""


class Lives:
    """The node, which may be killed and started again, and its state."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        (folder / "counting.py").write_text(COUNTING)
        self.folder = folder
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.state = folder / "state"
        values = {
            "s4.state.folder": str(self.state),
            "s4.stream.clicks.grade": "durable",
            "s4.cluster.partitions": "4",
            "task.commit.ms": "20",
        } | settings
        self.arguments = ["run", folder / "counting.py", "--listen", self.address]
        for key, value in values.items():
            self.arguments += ["-p", f"{key}={value}"]

    def node(self, *arguments: str, **more: Any) -> AbstractAsyncContextManager[NodeProcess]:
        return s4_process(*self.arguments, *arguments, cwd=self.folder, **more)

    def check(self, sent: dict[str, int]) -> None:
        kept = saved_instances(self.state / "default" / "counting")
        expected = Counter(
            f"{name} {n % USERS}" for name, count in sent.items() for n in range(count)
        )
        assert {key: each["clicks"] for key, each in kept.items()} == expected
        assert [key for key, each in kept.items() if each["wrong"]] == []
        numbers: Counter[str] = Counter()
        for rows in saved_producers(self.state / "default" / "counting").values():
            for (stream, name), row in rows.items():
                assert stream == "clicks"
                if not name.startswith("~"):  # what tasks have sent each other
                    numbers[name] += row.number
        assert numbers == sent
