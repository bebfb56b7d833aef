"""A machine that loses its power: what its folder was like when the disk was last waited for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT


class Power:
    """The power of the processes that have ``folder``.

    ``fault`` is for all of them, in the environment. They are killed first, then ``cut`` is called:
    the folder is what was on the disk for sure, or, with another point, at its last passing.
    """

    def __init__(self, folder: Path, at: str = "disk.synced") -> None:
        self.folder = folder
        self._copy = folder.with_name(f"{folder.name}.disk")
        self.fault = f"{at}>{folder}>{self._copy}"

    def cut(self) -> None:
        """Leave what was on the disk when something was last waited for."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._copy, self.folder)


CALLS = "openat,mkdir,rename,link,linkat,write,pwrite64,ftruncate,fsync,fdatasync"
_LINE = re.compile(r"(\d+) +(?:(\w+)\((.*)|<\.\.\. \w+ resumed>(.*))")
_FILE = re.compile(r"\d+<([^>]*)>")
_NAME = re.compile(r'"([^"]*)"')


def unwaited(program: str, folder: Path) -> set[str]:
    """The files below ``folder`` that a power cut may take once a Python program there has ended:
    those whose content was not waited for, and the folders with such names in them."""
    trace = folder.with_name("trace")
    strace = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={CALLS}", "-o", str(trace)]
    if subprocess.run([*strace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("strace cannot be used here: what is waited for is not tested")
    subprocess.run([*strace, sys.executable, "-c", program, folder], check=True, cwd=ROOT)
    found: dict[str, None] = {}
    known: set[str] = set()
    begun: dict[str, tuple[str, str]] = {}
    for line in trace.read_text().splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        thread, call, given, rest = match.groups()
        if call is None:
            call, given = begun.pop(thread)
            given += rest
        elif "<unfinished" in given:
            begun[thread] = call, given
            continue
        if " = -1 " in given:
            continue
        file, names = _FILE.match(given), _NAME.findall(given)
        if call in ("fsync", "fdatasync"):
            assert file is not None
            found.pop(file[1], None)
        elif call in ("write", "pwrite64", "ftruncate"):
            assert file is not None
            found[file[1]] = None
        elif call != "openat" or ("O_CREAT" in given and names[0] not in known):
            known.add(names[-1])
            found[str(Path(names[-1]).parent)] = None
            if call == "rename" and found.pop(names[0], "") is None:
                found[names[-1]] = None
    below = [Path(each) for each in found if Path(each).is_relative_to(folder.parent)]
    return {str(each.relative_to(folder.parent)) for each in below if each.exists()}
