"""Nodes for the demos: each in a process of its own, at a free port, stopped at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANY_PORT = "tcp://127.0.0.1:0"


@contextmanager
def running(*words: str) -> Iterator[str]:
    """Run ``s4 WORDS``, which starts a node; gives its address.

    Raises RuntimeError if it ends before the block does.
    """
    values = (f"s4.listener.address={ANY_PORT}", "s4.logger_level=warning")
    settings = [word for value in values for word in ("-p", value)]
    process = subprocess.Popen(
        [sys.executable, "-m", "s4node", *words, "--json", *settings],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"s4 {words[0]} did not start; why is above")
        yield json.loads(line)["address"]
        if process.poll() is not None:
            raise RuntimeError(f"s4 {words[0]} has ended; why is above")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@contextmanager
def running_log(folder: Path) -> Iterator[str]:
    """Run the node ``archive``, whose log and coordination are in ``folder``; gives its address."""
    places = [f"s4.log.folder={folder / 'log'}", f"s4.coordination.folder={folder / 'nodes'}"]
    with running("node", "archive", "-p", places[0], "-p", places[1]) as address:
        yield address


def s4(*words: str) -> None:
    """Run a command that ends."""
    subprocess.run(
        [sys.executable, "-m", "s4node", *words], check=True, cwd=ROOT, stdout=subprocess.DEVNULL
    )
