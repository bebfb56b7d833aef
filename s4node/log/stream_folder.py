"""A stream on disk: a folder with its manifest and a file a partition.

Rules
- A stream is made whole or not at all: in a folder beside, which is then renamed. Its number of
  partitions never changes.
- What looks like a mistake of the operator (a file that is missing, of a newer format, or
  another partition's) is refused when the stream is opened. A damaged file is not: the others open.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from s4node import disk
from s4node.config.kinds import is_file_name
from s4node.errors import StoreCorrupt, StoreError
from s4node.events.schema import UNREADABLE
from s4node.log.partition_database import FORMAT, begin_anew, create_database
from s4node.log.partition_file import PartitionFile
from s4node.logger import get_logger

log = get_logger("s4node.log")

MAX_PARTITIONS = 4096
"""The most partitions of a stream."""

_MANIFEST = "stream.json"


class StreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream as it was created; the manifest in its folder. None leaves retention to the log's
    own settings."""

    format: int
    name: str
    partitions: int
    key: str
    hasher: str
    retention_ms: int | None
    retention_bytes: int | None


def check_settings(wanted: StreamSettings) -> None:
    """Raises StoreError for settings that no stream can have."""
    if not (is_file_name(wanted.name) and wanted.name.isascii()):
        raise StoreError(
            f"{wanted.name!r} is not a name for a log stream; take up to 200 letters, digits, "
            f"'_', '-' and '.', with a letter, digit or '_' first"
        )
    if not 1 <= wanted.partitions <= MAX_PARTITIONS:
        raise StoreError(
            f"a stream has 1 to {MAX_PARTITIONS} partitions, not {wanted.partitions}; choose a "
            f"number in between"
        )


def differences(there: StreamSettings, wanted: StreamSettings) -> str:
    """What is other than somebody wants it, in words."""
    has, asks = _in_words(there), _in_words(wanted)
    other = [what for what in has if has[what] != asks[what]]
    return "; ".join(f"{what} {has[what]}, not {asks[what]}" for what in other)


def _in_words(settings: StreamSettings) -> dict[str, str]:
    """What may be other than somebody wants it."""
    ms, size = settings.retention_ms, settings.retention_bytes
    return {
        "format": str(settings.format),
        "partitions": str(settings.partitions),
        "key": settings.key.replace("+", ", ") or "none",
        "hasher": settings.hasher,
        "retention": "as the node says" if ms is None else f"{ms} ms" if ms else "for ever",
        "bytes of a partition": "as the node says" if size is None else str(size or "unbounded"),
    }


@contextmanager
def os_errors_as_ours(path: Path) -> Iterator[None]:
    """The system's errors as ours."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the log's files in {path} cannot be used ({error}); see to its rights and its disk, "
            f"or set s4.log.folder to another folder"
        ) from error


def stream_folders(folder: Path) -> list[Path]:
    """The folders of the streams; what was left over from a crash while creating is removed."""
    for left in folder.glob(".new-*"):
        shutil.rmtree(left, ignore_errors=True)
    return sorted(manifest.parent for manifest in folder.glob(f"*/{_MANIFEST}"))


def create_stream(folder: Path, settings: StreamSettings) -> None:
    """Make the folder of an empty stream in the folder of the log; raises StoreError."""
    new = folder / f".new-{settings.name}"
    text = msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n"
    try:
        with os_errors_as_ours(new):
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            for number in range(settings.partitions):
                create_database(_file(new, number), settings.name, number)
            manifest = new / _MANIFEST
            manifest.write_bytes(text)
            disk.sync(manifest, new)
            new.rename(folder / settings.name)
            disk.sync(folder)
    except StoreError:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:04}.sqlite"


def open_stream(
    folder: Path, sync: str
) -> tuple[StreamSettings, list[PartitionFile | StoreCorrupt]]:
    """Open the files in the folder of a stream, and say why where one is damaged; raises StoreError
    for what somebody has to put right first."""
    settings = _manifest(folder / _MANIFEST)
    for number in range(settings.partitions):
        with os_errors_as_ours(folder):
            begun = begin_anew(_file(folder, number), settings.name, number)
        if begun is not None:
            log.error(
                "a partition begins anew, without what was in its former file",
                stream=settings.name,
                partition=number,
                offset=begun[0],
                former=str(begun[1]),
            )
    files: list[PartitionFile | StoreCorrupt] = []
    there = {path.name for path in folder.glob("*.sqlite")}
    wanted = {_file(folder, number).name for number in range(settings.partitions)}
    if there != wanted:
        odd = ", ".join(sorted(there ^ wanted)[:3])
        raise StoreError(
            f"{folder} has {len(there)} partition files where its {_MANIFEST} says "
            f"{settings.partitions} partitions ({odd}); a stream never changes their number: put "
            f"the missing files or the manifest back"
        )
    try:
        for number in range(settings.partitions):
            try:
                files.append(PartitionFile(_file(folder, number), settings.name, number, sync))
            except StoreCorrupt as error:
                files.append(error)
    except BaseException:
        for file in files:
            if isinstance(file, PartitionFile):
                file.close()
        raise
    return settings, files


def _manifest(path: Path) -> StreamSettings:
    with os_errors_as_ours(path):
        text = path.read_bytes()
    try:
        version = msgspec.json.decode(text)["format"]
        if version != FORMAT:
            raise StoreError(
                f"{path} has format {version}, and this s4node reads format {FORMAT}; use the "
                f"s4node that wrote it"
            )
        settings = msgspec.json.decode(text, type=StreamSettings)
    except (*UNREADABLE, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read ({error}); put back a copy of it") from error
    if settings.name != path.parent.name:
        raise StoreError(
            f"{path} is of stream {settings.name!r}; put it back into the folder of that name"
        )
    check_settings(settings)
    return settings
