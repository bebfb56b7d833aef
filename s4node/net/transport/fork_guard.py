"""Whether this process was forked from one that had used our sockets: they do not work in it.

Rules
- Of the threads that carry a connection none lives in a fork, and nng aborts a process that goes on
  with it. So a caller that would wait for them, or open more, gets an error instead.
- The fork itself is noted: to look costs a call the reading of a flag.
"""

from __future__ import annotations

import os

from s4node.errors import S4Error

_used = False
forked = False
"""Whether the sockets here are those of a process that this one was forked from."""


def check() -> None:
    """Raise S4Error where the sockets are those of a process that this one was forked from."""
    if forked:
        raise S4Error(
            "this process was forked from one that had used s4node's sockets, which do not work in "
            "it; use multiprocessing's 'spawn', or open the first client behind the fork"
        )


def use() -> None:
    """From now on a fork of this process cannot use our sockets; as ``check``."""
    global _used
    check()
    _used = True


def _in_child() -> None:
    global forked
    forked = _used


os.register_at_fork(after_in_child=_in_child)
