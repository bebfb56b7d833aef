"""What a process says of an error at its end, and its exit status.

Rules
- Where nobody reads our output it ends quietly; where that cannot be written, it says so in a line.
  Only errors of standard output itself are taken for this, whatever the process is for.
"""

from __future__ import annotations

import sys

import trio

from s4node.deploy.tracebacks import cause_trace
from s4node.errors import ConfigError, GraphError, S4Error, leaves
from s4node.process import stdio


def exit_status(error: BaseException) -> int:
    """Print our own errors and return the exit status; raises what is not ours."""
    found = leaves(error)
    for leaf in found:
        if isinstance(leaf, S4Error):
            print(f"{cause_trace(leaf)}s4: {leaf}", file=sys.stderr)
        elif stdio.is_unwritten(leaf):
            _tell_output(leaf)
        elif not isinstance(leaf, (KeyboardInterrupt, trio.Cancelled)):
            raise error
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in found):
        return 130
    return 2 if any(isinstance(leaf, (ConfigError, GraphError)) for leaf in found) else 1


def _tell_output(error: BaseException) -> None:
    """Say why there is no output, unless nobody reads it; what is left of it is thrown away."""
    stdio.discard()
    if not isinstance(error, BrokenPipeError):
        print(f"s4: {stdio.unwritten(error)}", file=sys.stderr)
