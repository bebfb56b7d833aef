"""The promises of temporary folders: nothing of a killed process stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from s4node import disk

HOLDER = """
import sys, time
from pathlib import Path
from s4node import disk
with disk.temporary_folder(Path(sys.argv[1])):
    print(flush=True)
    time.sleep(120)
"""


def test_the_temporary_folder_of_a_killed_process_is_removed_with_the_next_one(
    tmp_path: Path,
) -> None:
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        (theirs,) = tmp_path.iterdir()
        (theirs / "file").write_text("data")
        with disk.temporary_folder(tmp_path) as ours:
            assert set(tmp_path.iterdir()) == {ours, theirs}
        holder.kill()
    with disk.temporary_folder(tmp_path) as ours:
        assert list(tmp_path.iterdir()) == [ours]
    assert list(tmp_path.iterdir()) == []
