"""The folder of a stream: a manifest and a file for each partition.

Rules
- A stream is created in a folder with another name, which is then renamed: it exists whole or not
  at all. Its number of partitions never changes.
- A mistake of the operator (a missing file, one of another format or another partition) keeps the
  stream from opening. A damaged file does not: the other partitions open.
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
from s4node.log.partition.partition_database import FORMAT, begin_anew, create_database
from s4node.log.partition.partition_file import PartitionFile
from s4node.logger import get_logger
from s4node.net.wire.frame import MAX_PARTITIONS

log = get_logger("s4node.log")

_MANIFEST = "stream.json"


class StreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a stream; its manifest. None leaves the retention to the node's settings.

    ``id`` is another one if a stream is created again; streams of earlier versions have none.
    """

    format: int
    name: str
    partitions: int
    key: str
    hasher: str
    retention_ms: int | None
    retention_bytes: int | None
    id: str = ""


def check_settings(wanted: StreamSettings) -> None:
    if not (is_file_name(wanted.name) and wanted.name.isascii()):
        raise StoreError(
            f"{wanted.name!r} is not a valid stream name for the log; use up to 200 letters, "
            f"digits, '_', '-' and '.', beginning with a letter, digit or '_'"
        )
    if not 1 <= wanted.partitions <= MAX_PARTITIONS:
        raise StoreError(
            f"a stream has 1 to {MAX_PARTITIONS} partitions, not {wanted.partitions}; choose a "
            f"number in this range"
        )


def differences(there: StreamSettings, wanted: StreamSettings) -> str:
    """The differences between two streams' settings, as text."""
    has, asks = _as_text(there), _as_text(wanted)
    other = [what for what in has if has[what] != asks[what]]
    return "; ".join(f"{what} {has[what]}, not {asks[what]}" for what in other)


def _as_text(settings: StreamSettings) -> dict[str, str]:
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
    """Translate errors of the system into StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the log's files in {path} cannot be used ({error}); check their permissions and the "
            f"disk, or set s4.log.folder to another folder"
        ) from error


def stream_folders(folder: Path) -> list[Path]:
    """The folders of the streams; removes what a crash left over of one that was being created or
    dropped."""
    for left in (*folder.glob(".new-*"), *folder.glob(".dropped-*")):
        shutil.rmtree(left, ignore_errors=True)
    return sorted(manifest.parent for manifest in folder.glob(f"*/{_MANIFEST}"))


def create_stream(folder: Path, settings: StreamSettings) -> None:
    """Create the folder of an empty stream in the log's folder; raises StoreError."""
    new = folder / f".new-{settings.name}"
    text = msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n"
    try:
        with os_errors_as_ours(new):
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(mode=0o700)
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


def drop_stream(folder: Path, name: str) -> None:
    """Remove the folder of a stream whose files are closed; raises StoreError."""
    gone = folder / f".dropped-{name}"
    with os_errors_as_ours(folder):
        shutil.rmtree(gone, ignore_errors=True)
        (folder / name).rename(gone)
        disk.sync(folder)
    shutil.rmtree(gone, ignore_errors=True)  # the next start removes what is left


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:04}.sqlite"


def open_stream(
    folder: Path, sync: str
) -> tuple[StreamSettings, list[PartitionFile | StoreCorrupt]]:
    """Open the files of a stream; a damaged file is given as its error. Raises StoreError for a
    mistake of the operator."""
    settings = _manifest(folder / _MANIFEST)
    for number in range(settings.partitions):
        with os_errors_as_ours(folder):
            begun = begin_anew(_file(folder, number), settings.name, number)
        if begun is not None:
            log.error(
                "a partition starts again without the events of its former file",
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
            f"{folder} has {len(there)} partition files, but its {_MANIFEST} has "
            f"{settings.partitions} partitions ({odd}); the number of partitions never changes: "
            f"put back the missing files or the manifest"
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
        raise StoreError(f"{path} cannot be read ({error}); put back a copy of the file") from error
    if settings.name != path.parent.name:
        raise StoreError(
            f"{path} belongs to stream {settings.name!r}; put it back in the folder of that stream"
        )
    check_settings(settings)
    return settings
