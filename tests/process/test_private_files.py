"""Files of a node, or of a program with a node in it, are for its own user only."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from harness import ANY_PORT, run_s4, running, s4_process
from log_nodes import log_at
from shared_apps import Click, Count, OnePE

from s4node import Client

COUNT = """
from s4node import App, ProcessingElement
class Count(ProcessingElement):
    n: int = 0
    def on_event(self, event):
        self.n += 1
app = App("count")
app.create_input_stream("names", app.create_pe(Count), key="name")
"""


@pytest.mark.long
async def test_coordination_log_and_state_are_for_their_own_user_only(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(COUNT)
    folders = [tmp_path / name for name in ("tree", "log", "state", "certs")]
    settings = {
        "s4.coordination.folder": folders[0],
        "s4.log.folder": folders[1],
        "s4.state.folder": folders[2],
        "s4.listener.address": ANY_PORT,
        "s4.stream.names.grade": "durable",
    }
    options = [text for key, value in settings.items() for text in ("-p", f"{key}={value}")]
    before = os.umask(0o022)
    try:
        async with s4_process("node", "demo", *options, cwd=tmp_path) as node:

            async def s4(*arguments: str, stdin: bytes = b"") -> None:
                done = await run_s4(*arguments, cwd=tmp_path, stdin=stdin)
                assert done.returncode == 0, done.stderr

            await s4("log", "create", "pages", "--to", node.address)
            await s4("log", "append", "pages", "--to", node.address, stdin=b'{"page": 1}\n')
            await s4("deploy", "count.py", "--cluster", "demo", "--folder", str(folders[0]))
            await s4("send", "names", "--to", node.address, stdin=b'{"name": "ann"}\n')
            place = ("--cluster", "demo", *options)
            await s4("savepoint", "take", "count", "--name", "one", *place)
            await s4("certs", str(folders[3]), "s4://demo/node/one")
    finally:
        os.umask(before)
    modes = {}
    for path in {path for folder in folders for path in (folder, *folder.rglob("*"))}:
        with suppress(FileNotFoundError):  # the app's container ends after its node
            modes[path] = path.lstat().st_mode
    open_to_others = [path for path, mode in modes.items() if mode & 0o077]
    assert [path for path in open_to_others if not stat.S_ISLNK(modes[path])] == []
    files = [path for path, mode in modes.items() if stat.S_ISREG(mode)]
    for folder in folders:
        assert any(folder in path.parents for path in files), folder


async def test_a_program_keeps_state_and_log_for_its_own_user_only(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("log", "state")]
    for folder in folders:
        folder.mkdir(mode=0o755)  # by somebody else, so what is in it can be reached
    settings = {
        "s4.log.folder": str(folders[0]),
        "s4.state.folder": str(folders[1]),
        "s4.stream.clicks.grade": "durable",
    }
    before = os.umask(0o022)
    try:
        async with (
            running(OnePE(Count), settings) as container,
            log_at(container.address) as log,
            Client(container.address) as client,
        ):
            await log.create("pages", 1)
            clicks = await client.stream("clicks")
            await clicks.send(Click("ann"))
            assert await clicks.flush() == []
    finally:
        os.umask(before)
    for folder in folders:
        within = list(folder.iterdir())
        assert within
        reached = [path for path in within if path.stat().st_mode & 0o077]
        assert reached == []
