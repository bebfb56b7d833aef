"""A package: an app in one file, as it travels to the nodes.

Rules
- A zip archive with a manifest, the app's pickle if it has one, and sources. This module knows the
  format and runs nothing; making a package and loading its app is :mod:`s4node.deploy.pack`.
- Loading a package runs its code. So packages come over a node's admin socket only, and a stored
  one is used only if its digest is the one that was agreed on.
- Bytes that are no package, however they were damaged, end in a PackageError and nothing else: the
  node that finds them goes on.
- What a package says of itself is believed by nobody: names that lead elsewhere are refused where
  it is made and where it is read, and what is unpacked stays in the folder that is given.
  Nor is a file unpacked beyond the size that it is said to have; those sizes are bounded.
- A pickle is Python's own bytecode, good for one minor version: another one is refused before
  anything is loaded.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from s4node.config.kinds import is_file_name
from s4node.errors import PackageError, described
from s4node.events.schema import UNREADABLE

FORMAT = 1
MAX_BYTES = 64 << 20
"""The most that a package may hold, unpacked."""

MANIFEST = "s4-package.json"
PICKLE = "app.pickle"
SOURCES = "sources/"

_MOST_OF_A_VERSION = 200
"""Characters."""

_SHOWN = 60
"""How much of a bad name an error shows."""

_TIME = (1980, 1, 1, 0, 0, 0)  # the same content makes the same bytes


def python_here() -> str:
    """The minor version of this process's Python."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a package is.

    ``entry`` names the app in the sources: ``package.module:name`` or ``FILE.py:name``; for a
    pickle the file that it was made from. ``settings`` are those that it was deployed with; they
    win over a node's own. ``requires`` names what must be installed on a node.
    """

    name: str
    version: str
    kind: Literal["pickle", "source"]
    entry: str
    python: str
    s4node: str
    settings: dict[str, str] = {}
    requires: list[str] = []
    format: int = FORMAT

    def check_names(self) -> None:
        """Raise PackageError for a name that is none or leads elsewhere, and for a version that
        cannot be shown on a line."""
        if not is_file_name(self.name):
            raise PackageError(
                f"{_shown(self.name)} is not a name for an app that is deployed; take letters, "
                f"digits, '_', '-' and '.', 200 bytes at most, with a letter, digit or '_' first "
                f"(s4 deploy --name gives it another one)"
            )
        version = self.version  # nothing is named after it
        if not (version.strip() and version.isprintable() and len(version) <= _MOST_OF_A_VERSION):
            raise PackageError(
                f"{_shown(version)} is no version of app {self.name!r}; take 1 to "
                f"{_MOST_OF_A_VERSION} characters that can be printed, not blanks alone"
            )


class Package(msgspec.Struct, frozen=True):
    """A manifest and the files beside it, by their path in the archive."""

    manifest: Manifest
    files: dict[str, bytes]

    def encode(self) -> bytes:
        """The archive."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            manifest = msgspec.json.format(msgspec.json.encode(self.manifest))
            for name, content in [(MANIFEST, manifest), *sorted(self.files.items())]:
                info = zipfile.ZipInfo(name, _TIME)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o600 << 16
                archive.writestr(info, content)
        return out.getvalue()

    def check_python(self) -> None:
        """Raise PackageError unless this Python can run it."""
        made, here = self.manifest.python, python_here()
        if made != here:
            raise PackageError(
                f"app {self.manifest.name!r} was packaged with Python {made}, and this node runs "
                f"Python {here}, which cannot load it: deploy it with Python {here}, or run the "
                f"nodes with Python {made}"
            )

    def unpack(self, folder: Path) -> Path:
        """Write the sources into ``folder``, and nothing else be there; returns ``folder``.

        Raises PackageError where that cannot be, as with names that are too long for files.
        """
        sources = {name: data for name, data in self.files.items() if name.startswith(SOURCES)}
        _check_files(sources)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            for name, content in sources.items():
                target = folder / name.removeprefix(SOURCES)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        except OSError as error:
            raise PackageError(
                f"app {self.manifest.name!r} cannot be unpacked to {folder}: {error}; make room "
                f"there, or name its files otherwise"
            ) from error
        return folder


def digest_of(data: bytes) -> str:
    """What names a package's bytes and no others."""
    return hashlib.sha256(data).hexdigest()


def content_version(manifest: Manifest, files: dict[str, bytes]) -> str:
    """A version for who gave none: of equal sources, settings and needs it is equal.

    The pickle does not count, for its bytes differ from one run to the next.
    """
    content = hashlib.sha256()
    agreed = (
        manifest.kind,
        manifest.entry,
        manifest.python,
        sorted(manifest.settings.items()),
        manifest.requires,
    )
    content.update(msgspec.json.encode(agreed))
    for name, data in sorted(files.items()):
        if name != PICKLE:
            content.update(f"{len(name)} {name} {len(data)} ".encode() + data)
    return content.hexdigest()[:12]


def decode(data: bytes) -> Package:
    """The package in an archive; raises PackageError."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = [i for i in archive.infolist() if not i.orig_filename.endswith("/")]  # folders
            size = sum(info.file_size for info in infos)
            if size > MAX_BYTES:
                raise PackageError(
                    f"the package holds {size} bytes; {MAX_BYTES} are allowed: keep data out of it"
                )
            files = {info.orig_filename: _content(archive, info) for info in infos}
            if len(files) < len(infos):
                raise _no_package("it has a file twice")
    except PackageError:
        raise
    except Exception as error:  # whatever zipfile, and what it unpacks with, makes of rubbish
        raise _no_package(described(error)) from error
    _check_files(files)
    try:
        manifest = msgspec.json.decode(files.pop(MANIFEST), type=Manifest)
    except KeyError:
        raise _no_package(f"it has no {MANIFEST}") from None
    except UNREADABLE as error:
        raise _no_package(f"its {MANIFEST} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise PackageError(
            f"the package has format {manifest.format}, and s4node here reads {FORMAT}; deploy it "
            f"with the nodes' version of s4node"
        )
    if manifest.kind == "pickle" and PICKLE not in files:
        raise _no_package(f"it has no {PICKLE}")
    manifest.check_names()
    return Package(manifest, files)


def _no_package(why: str) -> PackageError:
    return PackageError(f"this is no package ({why}); make one with s4 deploy")


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A file of the archive, unpacked no further than to the size that it is said to have."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError("its files are to be deflated")  # of others no end can be set
    with archive.open(info) as file:
        return file.read(info.file_size + 1)  # past its end, where the checksum is looked at


def _check_files(names: Iterable[str]) -> None:
    """Raise PackageError for a file that would not lie where it says, below the folder it is
    unpacked to."""
    for name in names:
        # split as it is: pathlib takes "sources//x" for "sources/x", of which "/x" would be left
        if not {"\\", "\0"}.isdisjoint(name) or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise PackageError(
                f"the package has a file {name!r}, which leads elsewhere; name it otherwise, "
                f"and make the package with s4 deploy"
            )


def _shown(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}... ({len(name)} characters)"


class Store:
    """Packages in a folder, by their digest; shared by the nodes of a machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes) -> str:
        """Keep a package; returns its digest. Raises PackageError where it cannot be kept."""
        digest = digest_of(data)
        place = self._place(digest)
        if self._read(digest) == data:
            return digest
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = place.with_suffix(f".{id(data):x}.new")
            draft.touch(mode=0o600)
            draft.write_bytes(data)
            draft.rename(place)
        except OSError as error:
            raise PackageError(
                f"the package cannot be kept at {place}: {error.strerror}; make room there, or set "
                f"s4.coordination.folder to a folder that can be written"
            ) from error
        return digest

    def get(self, digest: str) -> bytes:
        """The package of this digest; raises PackageError where it is gone or spoilt."""
        data = self._read(digest)
        if data is None:
            raise PackageError(f"the package {self._place(digest)} is gone; deploy the app again")
        if digest_of(data) != digest:
            raise PackageError(f"the package {self._place(digest)} is spoilt; deploy the app again")
        return data

    def remove(self, digest: str) -> None:
        """Keep a package no longer."""
        self._place(digest).unlink(missing_ok=True)

    def _place(self, digest: str) -> Path:
        return self.folder / f"{digest}.zip"

    def _read(self, digest: str) -> bytes | None:
        try:
            return self._place(digest).read_bytes()
        except OSError:
            return None
