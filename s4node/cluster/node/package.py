"""A package: an app in one file, as it is sent to nodes and stored there.

Rules
- A package is a zip archive with a manifest, the app's pickle if it has one, and sources. This
  module knows the format and runs no code; :mod:`s4node.deploy.pack` makes packages and loads apps.
- Loading a package runs its code. So a package is used only if it has the digest
  that is agreed in the tree.
- Any damage to a package raises PackageError and nothing else, so the node continues.
- The manifest is not trusted: names that lead elsewhere are refused when a package is made and when
  it is read, and files are unpacked only below the given folder. No file is unpacked beyond its
  declared size, and those sizes are bounded.
- A pickle contains Python's bytecode, which belongs to one minor version: another version is
  refused before anything is loaded.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec

from s4node import disk
from s4node.cluster.tree.coordinations import is_zookeeper
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.kinds import is_file_name
from s4node.errors import ConfigError, PackageError, described
from s4node.events.schema import UNREADABLE
from s4node.state.remote_files import RemoteFiles

FORMAT = 1
MAX_BYTES = 64 << 20
"""The maximum size of a package's contents, unpacked."""

MANIFEST = "s4-package.json"
PICKLE = "app.pickle"
SOURCES = "sources/"

_MOST_OF_A_VERSION = 200
"""Characters."""

_SHOWN = 60
"""The most characters of an invalid name that an error shows."""

_DIGEST = re.compile("[0-9a-f]{64}")

_TIME = (1980, 1, 1, 0, 0, 0)  # so that equal contents make equal bytes


def python_here() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a package.

    ``entry`` names the app in the sources, as ``package.module:name`` or ``FILE.py:name``; for a
    pickle, the file that it was made from. ``settings`` are those given at deployment; they
    override a node's own. ``requires`` names what must be installed on a node.
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
        """Raise PackageError for an invalid app name, or a version that cannot be shown on a
        line."""
        if not is_file_name(self.name):
            raise PackageError(
                f"{_shown(self.name)} is not a name for an app that is deployed; use letters, "
                f"digits, '_', '-' and '.', at most 200 bytes, beginning with a letter, digit or "
                f"'_' (s4 deploy --name gives another name)"
            )
        version = self.version  # nothing is named after it
        if not (version.strip() and version.isprintable() and len(version) <= _MOST_OF_A_VERSION):
            raise PackageError(
                f"{_shown(version)} is not a version of app {self.name!r}; use 1 to "
                f"{_MOST_OF_A_VERSION} printable characters, not only blanks"
            )


class Package(msgspec.Struct, frozen=True):
    """A manifest, and the other files by their path in the archive."""

    manifest: Manifest
    files: dict[str, bytes]

    def encode(self) -> bytes:
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
        """Raise PackageError unless this Python can run the package."""
        made, here = self.manifest.python, python_here()
        if made != here:
            raise PackageError(
                f"app {self.manifest.name!r} was packaged with Python {made}, and this node runs "
                f"Python {here}, which cannot load it: deploy it with Python {here}, or run the "
                f"nodes with Python {made}"
            )

    def unpack(self, folder: Path) -> Path:
        """Write the sources to ``folder``, which is emptied first; returns ``folder``.

        Raises PackageError if that fails, for example because a name is too long.
        """
        sources = {name: data for name, data in self.files.items() if name.startswith(SOURCES)}
        _check_files(sources)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            disk.make_folder(folder)
            for name, content in sources.items():
                target = folder / name.removeprefix(SOURCES)
                disk.make_folder(target.parent)
                target.write_bytes(content)
        except OSError as error:
            raise PackageError(
                f"app {self.manifest.name!r} cannot be unpacked to {folder}: {error}; free some "
                f"space, or rename its files"
            ) from error
        return folder


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def content_version(manifest: Manifest, files: dict[str, bytes]) -> str:
    """A version for an app without one: equal for equal sources, settings and requirements.

    The pickle is left out, because its bytes differ from run to run.
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
                    f"the package holds {size} bytes, and at most {MAX_BYTES} are allowed; keep "
                    f"data out of it"
                )
            files = {info.orig_filename: _content(archive, info) for info in infos}
            if len(files) < len(infos):
                raise _no_package("it has a file twice")
    except PackageError:
        raise
    except Exception as error:  # zipfile and its decoders raise all kinds for garbage
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
            f"the package has format {manifest.format}, and this s4node reads format {FORMAT}; "
            f"deploy it with the nodes' version of s4node"
        )
    if manifest.kind == "pickle" and PICKLE not in files:
        raise _no_package(f"it has no {PICKLE}")
    manifest.check_names()
    return Package(manifest, files)


def _no_package(why: str) -> PackageError:
    return PackageError(f"this is not a package ({why}); make one with s4 deploy")


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A file of the archive, unpacked to at most its declared size."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError("its files have to be deflated")  # others cannot be bounded
    with archive.open(info) as file:
        return file.read(info.file_size + 1)  # reading past the end checks the checksum


def _check_files(names: Iterable[str]) -> None:
    """Raise PackageError for a file that would not be below the folder to which it is unpacked."""
    for name in names:
        # split the text itself: pathlib reads "sources//x" as "sources/x", but unpacking as "/x"
        if not {"\\", "\0"}.isdisjoint(name) or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise PackageError(
                f"the package has a file {name!r}, which leads elsewhere; rename the file, and "
                f"make the package with s4 deploy"
            )


def _shown(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}... ({len(name)} characters)"


def store_folder(coordination: Path) -> Path:
    return coordination / "packages"


def packages_url(place: str, config: Config) -> str:
    """Where all nodes reach the packages of apps; empty if they share a folder."""
    if not is_zookeeper(place):
        return ""
    url = config[settings.STATE_URL]
    if not url:
        raise ConfigError(
            "s4.coordination is a ZooKeeper, but s4.state.url is not set; set it to a URL that all "
            "nodes and the deploying machine reach: packages and state are there"
        )
    return url


class Store:
    """Packages by digest, in a folder that is shared by the nodes of a machine.

    With ``url``, where all nodes of ``cluster`` reach them, the folder has copies. The methods
    block.
    """

    def __init__(self, folder: Path, url: str = "", cluster: str = "") -> None:
        self.folder = folder
        self._files = RemoteFiles(url, Path("packages") / quote(cluster, safe="")) if url else None

    def put(self, data: bytes) -> str:
        """Store a package; returns its digest. Raises PackageError if it cannot be stored."""
        digest = digest_of(data)
        if self._files is not None:
            with self._files.translate_errors():
                self._files.make_folder(self._files.root)
                self._files.put(self._object(digest), data)
        if self._local(digest) != data:
            self._save(digest, data)
        return digest

    def get(self, digest: str) -> bytes:
        """The package with this digest; raises PackageError if it is missing or damaged."""
        data = self._local(digest)
        if data is not None and digest_of(data) == digest:
            return data
        if self._files is not None:
            data = self._fetch(digest)
        if data is None:
            raise PackageError(f"the package {self._at(digest)} is missing; deploy the app again")
        if digest_of(data) != digest:
            raise PackageError(f"the package {self._at(digest)} is damaged; deploy the app again")
        self._save(digest, data)
        return data

    def has(self, digest: str) -> bool:
        if self._files is None:
            return self.file(digest).exists()
        with self._files.translate_errors():
            return f"{digest}.zip" in self._files.names(self._files.root)

    def remove(self, digest: str) -> None:
        self.file(digest).unlink(missing_ok=True)
        if self._files is not None:
            with self._files.translate_errors(), suppress(FileNotFoundError):
                self._files.fs.rm_file(self._object(digest))

    def file(self, digest: str) -> Path:
        """The file of a package in the folder, once :meth:`get` has returned it."""
        if not _DIGEST.fullmatch(digest):
            raise PackageError(f"{_shown(digest)} is not the digest of a package")
        return self.folder / f"{digest}.zip"

    def _object(self, digest: str) -> str:
        assert self._files is not None
        return f"{self._files.root}/{digest}.zip"

    def _at(self, digest: str) -> str:
        return str(self.file(digest)) if self._files is None else f"{self._files.url}/{digest}.zip"

    def _fetch(self, digest: str) -> bytes | None:
        assert self._files is not None
        with self._files.translate_errors():
            try:
                return bytes(self._files.fs.cat_file(self._object(digest)))
            except FileNotFoundError:
                return None

    def _save(self, digest: str, data: bytes) -> None:
        place = self.file(digest)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = place.with_suffix(f".{id(data):x}.new")
            draft.touch(mode=0o600)
            draft.write_bytes(data)
            draft.rename(place)
        except OSError as error:
            raise PackageError(
                f"the package cannot be stored at {place}: {error.strerror}; free some space, or "
                f"set s4.coordination.folder to a folder that you may write to"
            ) from error

    def _local(self, digest: str) -> bytes | None:
        try:
            return self.file(digest).read_bytes()
        except OSError:
            return None
