"""A savepoint as one file: a tar archive with the manifest first.

Rules
- Only regular files that the manifest names are read, so nothing is written outside the folder.
- An imported savepoint appears under its name once all of its files are there and checked.
- No other savepoint of this machine removes what an import has brought so far.
- It is the user's, also if a deployment took it: later deployments do not remove it.
"""

from __future__ import annotations

import shutil
import tarfile
from io import BytesIO
from pathlib import Path

import msgspec

from s4node import disk
from s4node.errors import CheckpointError, ConfigError
from s4node.failpoints import passing
from s4node.offsets.cuts import CutReport
from s4node.savepoints.folders import translate_errors
from s4node.savepoints.manifest import Manifest, parse
from s4node.savepoints.place import MANIFEST, SavepointPlace, check, places_of
from s4node.state.job import named_folder, safe_name

_MANIFEST_BYTES = 256 << 20


def write(folder: Path, manifest: Manifest, file: Path) -> int:
    """Write the savepoint in ``folder`` into a new ``file``; return the file's size in bytes."""
    new = file.with_name(f"{file.name}.new")
    try:
        if file.exists():
            raise ConfigError(f"{file} exists already; remove it, or name another file")
        with tarfile.open(new, "w", format=tarfile.PAX_FORMAT) as tar:
            data = msgspec.json.encode(manifest)
            about = tarfile.TarInfo(MANIFEST)
            about.size = len(data)
            tar.addfile(about, BytesIO(data))
            for task, name, _ in manifest.files():
                tar.add(named_folder(folder, task) / name, f"{safe_name(task)}/{name}")
        disk.sync(new)
        passing("export.written")
        new.rename(file)
        disk.sync(file.parent)
        return file.stat().st_size
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error
    finally:
        new.unlink(missing_ok=True)


def read(place: SavepointPlace, app: str, file: Path, name: str = "") -> Manifest:
    """Add the savepoint in ``file`` to those of ``app``, under ``name`` or its own name.

    Raises CheckpointError if it is damaged or another app's, ConfigError if it cannot be read.
    """
    try:
        with tarfile.open(file, "r:") as tar:
            return _read(place, app, tar, file, name)
    except tarfile.TarError as error:
        raise CheckpointError(
            f"{file} is not what s4 savepoint export has written, or is cut off: {error}"
        ) from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error


def _read(place: SavepointPlace, app: str, tar: tarfile.TarFile, file: Path, name: str) -> Manifest:
    first = tar.next()
    if first is None or first.name != MANIFEST or first.size > _MANIFEST_BYTES:
        raise CheckpointError(f"{file} is not what s4 savepoint export has written")
    manifest = parse(_content(tar, first, file), file)
    manifest.check_app(app)
    name = name or manifest.name
    number = place.prepare(name, app)
    manifest = msgspec.structs.replace(manifest, name=name, number=number, upgrade=None)
    with translate_errors(place.folder), place.bringing(number) as cuts:
        wanted = {
            f"{safe_name(task)}/{each}": path
            for (task, each), path in places_of(cuts, manifest).items()
        }
        for member in tar:
            if member.name in wanted and member.isreg():
                path = wanted.pop(member.name)
                disk.make_folder(path.parent)
                source = tar.extractfile(member)
                assert source is not None
                with source, path.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
        if wanted:  # a file that ends within a header looks whole to tarfile
            raise CheckpointError(
                f"{file} is not what s4 savepoint export has written, or is cut off: "
                f"{min(wanted)} is missing"
            )
        check(cuts, manifest)
        passing("import.copied")
        for task, saved in manifest.tasks.items():
            place.publish(number, CutReport(task, saved.fence, saved.commit))
        place.write_manifest(manifest)
    return manifest


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, file: Path) -> bytes:
    source = tar.extractfile(member)
    if source is None:
        raise CheckpointError(f"{file} is not what s4 savepoint export has written")
    with source:
        return source.read()
