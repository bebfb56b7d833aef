"""The last message of a process that ends with an error."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from s4node.errors import StateError
from s4node.process.exit_status import exit_status


def test_the_limit_of_open_files_is_told_once_for_all_that_failed_because_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = [
        StateError("state/1 cannot be read: IO error: state/1/4.sst: Too many open files"),
        StateError("state/2 cannot be written: Too many open files"),
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    ]
    assert exit_status(BaseExceptionGroup("of tasks", failed)) == 1
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert capsys.readouterr().err == (
        f"s4: {failed[0]}; this process may open {limit} files: raise that (ulimit -n, "
        f"LimitNOFILE of systemd), or use more nodes\n"
    )
