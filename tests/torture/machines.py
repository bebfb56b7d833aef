"""Machines on this one: each has a network, mounts and a host name of its own.

Rules
- All is in namespaces of a process that :func:`python_apart` starts: nothing is left when it ends,
  and nothing of the real network is touched.
- The switch is ``10.88.0.1``, where this process is; so is the store, at an address of its own. A
  machine has one address, and a small disk of its own at the same path as all others; what else is
  on the disk of this machine they share.
- A cut is made at the machine that is cut off, and may be one-way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from harness import ROOT

from benchmarks.servers import can_run_zookeeper
from torture.slow_cable import carry

SWITCH = "10.88.0.1"
STORE = "10.88.0.200"
_NAMESPACES = ("--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_MEGABYTES = 256


def impossible() -> str:
    """The reason for which there can be no machines here; empty if there can."""
    if not can_run_zookeeper():
        return "ZooKeeper's jars are Spark's: make install-spark installs them"
    try:
        tried = subprocess.run(
            ["unshare", *_NAMESPACES, "sh", "-c", "ip link add switch0 type bridge && iptables -L"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return str(error)
    return tried.stderr.strip() if tried.returncode else ""


def python_apart(*arguments: str) -> int:
    """Run this Python in namespaces of its own; returns its exit status."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    ends_with_this = ("setpriv", "--pdeathsig", "KILL")
    return subprocess.run(
        [*ends_with_this, "unshare", *_NAMESPACES, sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    ).returncode


def _do(*command: str | Path) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert not done.returncode, f"{command}: {done.stderr}"


def switch_on() -> None:
    """Make the switch, once, in such a process."""
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "link", "add", "switch", "type", "bridge")
    for ip in (SWITCH, STORE):
        _do("ip", "addr", "add", f"{ip}/24", "dev", "switch")
    _do("ip", "link", "set", "switch", "up")


class Machine:
    """The machine ``name``, with the address ``10.88.0.number`` and a disk at ``disk``.

    ``shared`` is a folder that all machines have, such as that of a store.
    """

    def __init__(self, name: str, number: int, disk: Path, shared: Path) -> None:
        self.name = name
        self.ip = f"10.88.0.{number}"
        self.disk = disk
        self._shared = shared
        self._cable = f"cable{number}"
        self._holder = subprocess.Popen(
            [
                "unshare",
                "--net",
                "--mount",
                "--uts",
                "sh",
                "-c",
                f"hostname {name}; echo; sleep inf",
            ],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        _do("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "e0")
        _do("ip", "link", "set", "e0", "netns", str(self._holder.pid))
        _do("ip", "link", "set", self._cable, "master", "switch", "up")
        self._do("ip", "addr", "add", f"{self.ip}/24", "dev", "e0")
        for link in ("lo", "e0"):
            self._do("ip", "link", "set", link, "up")
        size = f"size={_MEGABYTES}m"
        self._do("mount", "-t", "tmpfs", "-o", size, "tmpfs", disk)
        self._do("mount", "--bind", shared, shared)

    def inside(self, *command: str | Path) -> list[str]:
        holder = str(self._holder.pid)
        return ["nsenter", "-t", holder, "-n", "-m", "-u", "--", *map(str, command)]

    def _do(self, *command: str | Path) -> None:
        _do(*self.inside(*command))

    # -- what may happen to it -----------------------------------------------------------------

    def unplug(self) -> None:
        """Cut it off from all others."""
        _do("ip", "link", "set", self._cable, "down")

    def plug_in(self) -> None:
        _do("ip", "link", "set", self._cable, "up")

    @asynccontextmanager
    async def far_away(self, seconds: float) -> AsyncIterator[None]:
        """Have all that it sends and gets take so long on its way, during the block."""
        near = self._cable.replace("cable", "near")
        far = self._cable.replace("cable", "far")
        _do("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        _do("ip", "link", "set", near, "up")
        _do("ip", "link", "set", self._cable, "nomaster")
        _do("ip", "link", "set", far, "master", "switch", "up")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(carry, self._cable, near, seconds)
                yield
                nursery.cancel_scope.cancel()
        finally:
            _do("ip", "link", "del", near)
            _do("ip", "link", "set", self._cable, "master", "switch")

    def cut(self, ip: str) -> None:
        """Cut it off from an address, both ways."""
        self._do("ip", "route", "add", "blackhole", f"{ip}/32")

    def join(self, ip: str) -> None:
        self._do("ip", "route", "del", "blackhole", f"{ip}/32")

    def deafen(self, ip: str) -> None:
        """Have nothing arrive here from an address, which still gets what is sent to it."""
        self._do("iptables", "-A", "INPUT", "-s", ip, "-j", "DROP")

    def lose(self, share: float) -> None:
        chance = ("-m", "statistic", "--mode", "random", "--probability", str(share))
        self._do("iptables", "-A", "INPUT", *chance, "-j", "DROP")

    def hear(self) -> None:
        """Undo both of these."""
        self._do("iptables", "-F", "INPUT")

    def fill(self) -> None:
        full = self.disk / "full"
        self._do("sh", "-c", f"! dd if=/dev/zero of={full} bs=64k status=none 2>&1 | grep -v space")

    def make_room(self) -> None:
        self._do("rm", self.disk / "full")

    def wipe(self) -> None:
        self._do("find", self.disk, "-mindepth", "1", "-delete")
