"""Processes of ``s4`` that spend no time on imports: forks of a server that has imported it all.

Each process of tests starts one server, with its first such process. A fork has standard streams,
a folder, an environment and signals of its own. It shares two things with the other forks: all
modules are loaded, and the seed of hashes is the server's. So the tests of loading, of standard
streams, of limits, and of what Python reads at its start begin processes of their own. The
containers that a supervisor starts are such processes in any case.
"""

from __future__ import annotations

import os
import pickle
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import IO, NamedTuple

import trio

LONGEST = 100_000
STREAMS = 3


class Request(NamedTuple):
    """A module to run as a program; its standard streams, and a pipe for its status, come too."""

    module: str
    arguments: list[str]
    cwd: str
    env: dict[str, str]
    own_session: bool


class Fork:
    """The part of a process that both kinds of forks have."""

    def __init__(self, pid: int, status: int) -> None:
        os.set_blocking(status, False)
        self.pid = pid
        self._status = os.fdopen(status, "rb", buffering=0)
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        if self._code is None and (said := self._status.read(16)) is not None:
            self._status.close()
            self._code = int(said)
        return self._code

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Forked(Fork):
    """A process as :class:`trio.Process` has it, but for its class."""

    def __init__(self, pid: int, status: int, pipes: list[int]) -> None:
        super().__init__(pid, status)
        self.stdin, self.stdout, self.stderr = map(trio.lowlevel.FdStream, pipes)
        self._lock = trio.Lock()

    async def wait(self) -> int:
        async with self._lock:
            while (code := self.returncode) is None:
                await trio.lowlevel.wait_readable(self._status)
        return code


class SyncForked(Fork):
    """A process as :class:`subprocess.Popen` has it, with a pipe for its output."""

    def __init__(self, pid: int, status: int, output: int) -> None:
        super().__init__(pid, status)
        self.stdout = os.fdopen(output, "rb")

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while (code := self.returncode) is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code


class ForkServer:
    """Starts the server before the first fork, and asks it for one fork at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._python: dict[str, str] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    @property
    def pids(self) -> set[int]:
        """The number of the server's process, if it has begun."""
        return {self._server.pid} if self._server else set()

    def close(self) -> None:
        self._theirs.close()
        self._socket.close()
        if self._server is not None:
            self._server.wait()

    async def fork(self, request: Request) -> Forked | None:
        """A fork; None if Python would not begin in such an environment as the server has."""
        pipes = [os.pipe() for _ in range(STREAMS + 1)]
        theirs = [pipes[0][0], *(write for _, write in pipes[1:])]
        ours = [pipes[0][1], *(read for read, _ in pipes[1:])]
        try:
            pid = await trio.to_thread.run_sync(self._ask, request, theirs)
        finally:
            for each in theirs:
                os.close(each)
        if pid is None:
            for each in ours:
                os.close(each)
            return None
        return Forked(pid, ours[STREAMS], ours[:STREAMS])

    def fork_sync(self, request: Request, stderr: IO[bytes]) -> SyncForked:
        """A fork with nothing to read, and a pipe for its output."""
        (output, stdout), (ended, status) = os.pipe(), os.pipe()
        with open(os.devnull) as nothing:  # noqa: PTH123
            pid = self._ask(request, [nothing.fileno(), stdout, stderr.fileno(), status])
        for each in (stdout, status):
            os.close(each)
        assert pid is not None, "Python would begin in another way"
        return SyncForked(pid, ended, output)

    def _ask(self, request: Request, descriptors: list[int]) -> int | None:
        with self._lock:
            if self._server is None:
                self._begin(request.env)
            if _of_python(request.env) != self._python:
                return None
            socket.send_fds(self._socket, [pickle.dumps(tuple(request))], descriptors)
            return int(self._socket.recv(16))

    def _begin(self, env: dict[str, str]) -> None:
        self._python = _of_python(env)
        number = self._theirs.fileno()
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(number)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[number],
            env={**env, "S4_FAULT": ""},  # that of the first fork is not that of the others
        )
        self._theirs.close()
        assert self._socket.recv(16) == b"ready"


forks = ForkServer()


def _of_python(env: dict[str, str]) -> dict[str, str]:
    """The environment variables that Python reads when it starts."""
    read = ("PYTHON", "LANG", "LC_")
    return {name: value for name, value in env.items() if value and name.startswith(read)}


# -- the server -----------------------------------------------------------------------------------


def main() -> None:
    """Serve until the process of tests ends; in a fork, run the module instead."""
    _import_all()
    asked = socket.socket(fileno=int(sys.argv[1]))
    request = _serve(asked)
    if request is not None:
        from s4node import failpoints

        fault = request.env.get(failpoints.VARIABLE)
        with failpoints.replaced(failpoints.point(fault)) if fault else nullcontext():
            runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def _import_all() -> None:
    import_module("pytest")
    import s4node

    for module in pkgutil.walk_packages(s4node.__path__, "s4node."):
        if "spark" not in module.name and not module.name.endswith("__"):
            with suppress(ImportError):  # of what an extra installs
                import_module(module.name)


def _serve(asked: socket.socket) -> Request | None:
    alive: dict[int, tuple[int, int]] = {}  # by file of a process: its number, and where to report
    asked.send(b"ready")
    with selectors.DefaultSelector() as selector:
        selector.register(asked, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in alive:
                    pid, status = alive.pop(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with suppress(BrokenPipeError):
                        os.write(status, str(code).encode())
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    os.close(status)
                    continue
                said, given, _, _ = socket.recv_fds(asked, LONGEST, STREAMS + 1)
                if not said:
                    return None
                request = Request(*pickle.loads(said))
                # it would be lost if it came during Python's own hooks, whose errors are ignored
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                pid = os.fork()
                if not pid:
                    asked.detach()  # or its end closes whatever has this number by then
                    _begin(request, given[:STREAMS])
                    return request
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                for each in given[:STREAMS]:
                    os.close(each)
                place = os.pidfd_open(pid)
                alive[place] = (pid, given[STREAMS])
                selector.register(place, selectors.EVENT_READ)
                asked.send(str(pid).encode())


def _begin(request: Request, streams: list[int]) -> None:
    for number, each in enumerate(streams):
        os.dup2(each, number)
    os.closerange(STREAMS, 256)
    if request.own_session:
        os.setsid()
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    sys.argv = [request.module, *request.arguments]
    sys.path[0] = request.cwd
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


if __name__ == "__main__":
    main()
