"""The commands show an app with windows."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from cli_apps import send
from harness import node_process, run_s4, until

pytestmark = pytest.mark.slow

WINDOWS = """
from s4node import App, Event, ProcessingElement, tumbling

class Click(Event):
    user: str
    at: float

class Clicks(ProcessingElement):
    count: int = 0

    def on_event(self, click: Click) -> None:
        self.count += 1

    def on_window(self) -> None:
        print(self.key, self.count, flush=True)

app = App("windows")
clicks = app.create_pe(Clicks)
clicks.set_window(tumbling(10), grace=3600)
app.create_input_stream("clicks", clicks, key="user", types=Click, time="at")
"""


@pytest.mark.long
async def test_when_all_who_sent_are_gone_windows_and_watermarks_are_shown(tmp_path: Path) -> None:
    (tmp_path / "windows.py").write_text(WINDOWS)
    state = f"s4.state.folder={tmp_path / 'state'}"
    at = int(time.time()) // 10 * 10 - 100
    clicks = [{"user": "joe", "at": at}, {"user": "joe", "at": at + 10}, {"user": "ann", "at": at}]
    clicks.append({"user": "ann", "at": at + 20})
    async with node_process("windows.py", "-p", state, cwd=tmp_path) as node:
        done = await send(tmp_path, node, "clicks", "".join(json.dumps(c) + "\n" for c in clicks))
        assert done.stderr == "clicks: 4 admitted\n"
        await until(lambda: sorted(node.stdout) == ["ann 1", "joe 1", "joe 1"])
        shown = await run_s4("status", cwd=tmp_path)
        assert shown.returncode == 0
        assert "stream clicks of windows is at" in shown.stdout
        got = await run_s4("state", "get", "windows", "joe", "-p", state, cwd=tmp_path)
        assert got.stdout.splitlines() == [
            f"Partition 0  Clicks  ('joe', {at + more:.1f})  {{\"count\": 1}}" for more in (0, 10)
        ]
