"""HTTP of a process that runs an app: a thread with a trio run of its own.

So a handler that blocks the app's loop does not hide itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio

from s4node.errors import S4Error, described, leaves
from s4node.http.server import HttpServer
from s4node.logger import quiet


@contextmanager
def served_in_thread(server: HttpServer) -> Iterator[None]:
    """Have ``server`` answer during the block; raises ConfigError if it cannot listen."""
    started = threading.Event()
    failures: list[BaseException] = []
    tokens: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        await server.listen()
        tokens.append(trio.lowlevel.current_trio_token())
        started.set()
        await server.run()

    def run() -> None:
        quiet.set(True)  # its clients lose the app when that stops
        try:
            trio.run(serve)
        except BaseException as error:
            failures.append(error)
        started.set()

    thread = threading.Thread(target=run, name="http", daemon=True)
    thread.start()
    started.wait()
    if failures:
        raise failures[0]
    reason = "the process stops"
    try:
        yield
    except BaseException as error:
        first = leaves(error)[0]
        text = str(first) if isinstance(first, S4Error) else described(first)
        reason = f"the app has ended: {text}"
        raise
    finally:
        with suppress(trio.RunFinishedError):
            tokens[0].run_sync_soon(server.end_with, reason)
        thread.join()
