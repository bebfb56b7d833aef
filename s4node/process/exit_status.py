"""The exit status of a process that ends with an error, and its last message.

Rules
- If the limit of open files was reached, that is reported once, whatever else failed because of it.
- If nobody reads the output, the process ends quietly; if the output cannot be written, it says so.
  Only errors of standard output itself count as this.
"""

from __future__ import annotations

import errno
import os
import resource
import sys

from s4node.deploy.tracebacks import cause_trace
from s4node.errors import S4Error, leaves, status_of
from s4node.process import stdio

_NO_FILES = os.strerror(errno.EMFILE)  # RocksDB uses this text, too


def exit_status(error: BaseException) -> int:
    """Print an s4node error and return the exit status; raises all other errors."""
    found = leaves(error)
    if full := next((leaf for leaf in found if _NO_FILES in str(leaf)), None):
        print(
            f"s4: {full}; this process may open {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} "
            f"files: raise that (ulimit -n, LimitNOFILE of systemd), or use more nodes",
            file=sys.stderr,
        )
        return 1
    for leaf in found:
        if isinstance(leaf, S4Error):
            print(f"{cause_trace(leaf)}s4: {leaf}", file=sys.stderr)
        elif stdio.is_unwritten(leaf):
            _report_output(leaf)
        elif not isinstance(leaf, KeyboardInterrupt):
            import trio  # which costs time, and a command that fails need not have

            if not isinstance(leaf, trio.Cancelled):
                raise error
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in found):
        return 130
    return max(map(status_of, found))


def _report_output(error: BaseException) -> None:
    """Say why output cannot be written, unless nobody reads it, and discard the rest."""
    stdio.discard()
    if not isinstance(error, BrokenPipeError):
        print(f"s4: {stdio.unwritten(error)}", file=sys.stderr)
