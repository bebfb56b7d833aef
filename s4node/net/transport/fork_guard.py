"""The fork guard: raises an error if sockets are used in a fork of a process that used them.

Rules
- The threads that carry connections do not live on in a fork, and nng aborts a process that uses
  them there. So a caller that would use a socket, or open one, gets an error instead.
- A flag is set at the fork, so a check only reads it.
"""

from __future__ import annotations

import os

from s4node.errors import S4Error

_used = False
forked = False
"""True if the sockets here belong to a process that this one was forked from."""


def check() -> None:
    """Raise S4Error if the sockets belong to a process that this one was forked from."""
    if forked:
        raise S4Error(
            "this process was forked from one that had used s4node's sockets, which do not work in "
            "it; use multiprocessing's 'spawn', or open the first client after the fork"
        )


def use() -> None:
    """As ``check``; from now on a fork of this process cannot use our sockets."""
    global _used
    check()
    _used = True


def _in_child() -> None:
    global forked
    forked = _used


os.register_at_fork(after_in_child=_in_child)
