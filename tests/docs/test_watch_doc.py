"""docs/watch.md is true: its app runs, and its commands print what it says."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import ANY_PORT, ROOT, run_s4, s4_process, until
from monitored import get
from pages import matches

PAGE = (ROOT / "docs" / "watch.md").read_text()


@pytest.mark.long
async def test_the_app_of_the_page_is_slow_and_each_command_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "shops.py").write_text(program)
    blocks = [block.splitlines() for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)]
    (run, *started), (feed, admitted), (why, *held), (again, *calm), (curl, answer) = blocks
    order = json.loads(feed.split("'")[1])
    assert (why, again) == ("$ s4 why", "$ s4 why")

    async def reasons(wanted: list[str]) -> None:
        """Ask until these lines are printed, perhaps beside others: the machine may be busy."""
        printed: list[str] = []
        with trio.move_on_after(60):
            while not all(any(matches([line], [one]) for one in printed) for line in wanted):
                printed = (await run_s4("why", cwd=tmp_path)).stdout.splitlines()
            return
        raise AssertionError(printed)

    arguments = run.removeprefix("$ s4 ").split()
    async with s4_process(*arguments, "--listen", ANY_PORT, cwd=tmp_path) as app:
        await until(lambda: app.url, "it says where to watch it")
        assert [line.split(":")[0] for line in started[1:]] == ["  watch it", "  send events"]
        await reasons(calm)
        lines = f"{json.dumps(order)}\n".encode() * 2000
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                while True:
                    sent = await run_s4("send", "orders", cwd=tmp_path, stdin=lines)
                    assert sent.stderr == f"{admitted}\n"

            nursery.start_soon(send)
            await reasons(held)
            path = curl.rpartition("12080")[2]
            rules: set[str] = set()
            with trio.fail_after(60):
                while not rules >= {"slow-pe", "hot-key"}:
                    status, text = await get(f"{app.url}{path}")
                    assert status == 200
                    assert matches([answer], [text])
                    (found,) = json.loads(text)
                    rules = {each["rule"] for each in found["reasons"]}
            nursery.cancel_scope.cancel()
        assert await _has(app.url, "/", "page.js")
        for section in ("partitions", "inputs", "commits", "dead letters"):
            assert f"| {section} |" in PAGE
        app.signal(signal.SIGINT)
        await app.wait()


async def _has(base: str, path: str, text: str) -> Any:
    status, found = await get(f"{base}{path}")
    return status == 200 and text in found
