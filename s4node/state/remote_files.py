"""The files of a job at a URL, on any file system of ``fsspec``.

Rules
- The file system has to show an object to everyone, also in listings, as soon as it is written. It
  needs no locks.
- An object is never overwritten with other content: a new version has a new name. So nobody
  mistakes what a paused writer puts late for what was there.
- Only some file systems can put an object on the condition that there is none yet. ``fsspec``
  offers this for all, but elsewhere it looks and then writes, which is not a condition. A server
  may ignore the condition, too: so two writers try at the same time.
- Listings are never cached: others write here, too.
- Each request costs its time, in restores above all. So ``s3fs`` may not ask for the size of an
  object before it reads it, has a connection for each of the requests at a time, and does not parse
  the times in lists. Object stores, which have no folders, are asked to make one once, and list
  several in one request. A file system with an event loop gets many requests in one call, as a
  thread for each waits long for the interpreter's lock.
- With ``sync``, an object that was put at a ``file://`` URL is on disk, with all names above it.
- A name that is read back is one part of a path, so that it cannot lead out of its folder.
- Every error of the file system becomes a StateError, which may be retried, and a StateUnreachable
  unless somebody has to give rights or correct the URL first.
- All calls block: make them in threads.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from s4node import disk, threads, tokens
from s4node.errors import ConfigError, S4Error, StateError, StateUnreachable

AT_ONCE = 32
"""The requests that are made at a time."""

_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""The protocols whose file systems send a condition to the store, and which have no folders."""

_MOST_UNASKED_BYTES = 1 << 20
"""An S3 server is asked whether it takes a longer object, before it is sent."""

_PROBES = 8
_NO_LINK = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL_TEXTS = ("quota", "storage full", "storagefull", "insufficient storage", "no space")

A = TypeVar("A")
R = TypeVar("R")


class RemoteFiles:
    """The files of the job in ``folder``, at the same place below ``url`` as on this node.

    ``url`` is for people; ``root`` is the path in the file system ``fs``.
    """

    def __init__(self, url: str, folder: Path, *, sync: bool = False) -> None:
        self._sync = sync
        self._has_bucket = False
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                f"s4.state.url = {url} needs fsspec; run pip install 's4node[ship]', and install "
                f"the package that fsspec needs for this kind of URL"
            ) from error
        try:
            more = _s3_options() if url.startswith(("s3:", "s3a:")) else {}
            self.fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **more)
        except ImportError as error:  # its message names the package
            raise ConfigError(f"s4.state.url = {url}: {error}, on every node") from error
        except ValueError as error:
            known = ", ".join(sorted(fsspec.available_protocols()))
            raise ConfigError(
                f"s4.state.url = {url}: {error}; fsspec knows {known}, some of them only with "
                f"another package"
            ) from error
        below = f"{folder.parent.name}/{folder.name}"
        self.url = f"{url.rstrip('/')}/{below}"
        self.root = f"{root.rstrip('/')}/{below}"

    def names(self, folder: str) -> list[str]:
        """The names in a folder of the file system; empty if there is no such folder."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(folder, detail=False)
        except FileNotFoundError:  # an object store has no empty folders
            return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return [name for name in names if name not in ("", ".", "..")]

    def names_below(self, place: str, folders: Sequence[str]) -> list[list[str]]:
        """The names in each of these folders of ``place``, where object stores list all at once."""
        if not self._is_object_store:
            return [self.names(f"{place}/{folder}") for folder in folders]
        self.fs.invalidate_cache()
        found: dict[str, list[str]] = {folder: [] for folder in folders}
        for path in self.fs.find(place):
            folder, _, name = str(path).removeprefix(f"{place}/").partition("/")
            if name and folder in found:
                found[folder].append(name)
        return [found[folder] for folder in folders]

    def make_folder(self, folder: str) -> None:
        """Make a folder of the file system, and its missing parents."""
        if self._local and self._sync:
            disk.make_folders(Path(folder))
        elif self._local:
            disk.make_folder(Path(folder))
        elif not self._has_bucket:
            self.fs.makedirs(folder, exist_ok=True)
            self._has_bucket = self._is_object_store

    def put(self, place: str, data: bytes) -> None:
        """Write an object as a whole."""
        if not self._local:
            self.fs.pipe_file(place, data)
            return
        with self._whole(Path(place)) as new:
            new.write_bytes(data)

    def put_new(self, place: str, data: bytes) -> bool:
        """Write an object as a whole; return False, and write nothing, if there is one.

        Use it only if :meth:`can_create`.
        """
        try:
            if not self._local:
                self.fs.pipe_file(place, data, mode="create")
                return True
            new = Path(f"{place}.{tokens.fresh(4)}.tmp")
            try:
                new.write_bytes(data)
                if self._sync:
                    disk.sync(new)
                os.link(new, place)
            finally:
                new.unlink(missing_ok=True)
            if self._sync:
                disk.sync(new.parent)
        except FileExistsError:
            return False
        return True

    def can_create(self) -> bool:
        """Return True if two writers that create an object at a time never both succeed."""
        if not self._local and not self._is_object_store:
            return False
        folder = f"{self.root}/probe"
        places = [f"{folder}/{tokens.fresh(8)}" for _ in range(_PROBES)]
        self.make_folder(folder)
        both = threading.Barrier(2)

        def wins(writer: bytes) -> list[bool] | Exception:
            won = []
            try:
                for place in places:
                    both.wait()
                    won.append(self.put_new(place, writer))
            except Exception as error:
                both.abort()
                return error
            return won

        try:
            with ThreadPoolExecutor(2) as pool:
                try:
                    one, other = pool.map(wins, (b"1", b"2"))
                finally:
                    both.abort()  # after Ctrl-C, one may wait for another that never comes
        finally:
            self.remove(places)
        if isinstance(one, list) and isinstance(other, list):
            return not any(map(all, zip(one, other, strict=True)))
        errors = [each for each in (one, other) if isinstance(each, Exception)]
        errors.sort(key=lambda each: isinstance(each, threading.BrokenBarrierError))
        without = isinstance(errors[0], OSError) and errors[0].errno in _NO_LINK and self._local
        if without or isinstance(errors[0], (NotImplementedError, TypeError)):
            return False  # it knows no condition
        raise errors[0]

    def get(self, places: Iterable[str]) -> list[bytes | None]:
        """The contents of objects, many at a time; None for those that are missing."""
        if self.fs.async_impl:
            found = self.fs.cat_ranges(list(places), None, None, batch_size=AT_ONCE)
            return [_content(each) for each in found]

        def get(place: str) -> bytes | None:
            try:
                return bytes(self.fs.cat_file(place))
            except FileNotFoundError:
                return None

        return at_once(get, places)

    def remove(self, places: Iterable[str]) -> None:
        """Remove objects, many at a time."""

        def remove(place: str) -> None:
            with suppress(FileNotFoundError):
                self.fs.rm_file(place)

        at_once(remove, places)

    def put_file(self, path: Path, place: str) -> None:
        """Copy a file to an object as a whole."""
        if not self._local:
            self.fs.put_file(str(path), place)
            return
        with self._whole(Path(place)) as new:
            shutil.copyfile(path, new)

    @contextmanager
    def _whole(self, place: Path) -> Iterator[Path]:
        """A local file that gets the object's name once it is whole."""
        new = place.with_name(f"{place.name}.{tokens.fresh(4)}.tmp")  # others may write it, too
        yield new
        if self._sync:
            disk.sync(new)
        new.replace(place)
        if self._sync:
            disk.sync(place.parent)

    @property
    def _local(self) -> bool:
        return bool(getattr(self.fs, "local_file", False))

    @property
    def _is_object_store(self) -> bool:
        protocols = self.fs.protocol if isinstance(self.fs.protocol, tuple) else (self.fs.protocol,)
        return not _OBJECT_STORES.isdisjoint(protocols)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except S4Error:
            raise
        except Exception as error:
            kind, fix = _kind_and_fix(error)
            raise kind(
                f"{self.url} cannot be read or written: {type(error).__name__}: {error}; {fix}"
            ) from error


def at_once(function: Callable[[A], R], each: Iterable[A]) -> list[R]:
    """Call the function for each value, many at a time."""
    values = list(each)
    if len(values) < 2:
        return [function(value) for value in values]
    return threads.many(function, values, AT_ONCE)


def _s3_options() -> dict[str, Any]:
    """The options of ``s3fs``, beside those that the user has configured for ``fsspec``."""
    import fsspec

    theirs = fsspec.config.apply_config(fsspec.get_filesystem_class("s3"), {})
    ours = {"max_pool_connections": AT_ONCE, "user_agent": "s4node"}  # else built for each request
    return {
        "max_concurrency": 1,
        "config_kwargs": ours | theirs.get("config_kwargs", {}),
        "session": _s3_session(theirs.get("profile")),
    }


@cache
def _s3_session(profile: str | None) -> Any:
    from botocore.handlers import add_expect_header
    from s3fs.core import aiobotocore

    session = aiobotocore.session.AioSession(profile=profile)
    session.unregister("before-call.s3", add_expect_header)  # a put would be two round trips
    session.register("before-call.s3", _ask_before_much)
    factory = session.get_component("response_parser_factory")
    factory.set_parser_defaults(timestamp_parser=str)  # it takes as long as all else of a name
    return session


def _ask_before_much(model: Any, params: dict[str, Any], **others: Any) -> None:
    """Have a put of a large object ask first. A server may refuse it and close the connection
    before it has read all, and a client that still sends then does not learn why."""
    from botocore.handlers import add_expect_header
    from botocore.utils import determine_content_length

    if (determine_content_length(params.get("body")) or 0) > _MOST_UNASKED_BYTES:
        add_expect_header(model, params, **others)


def _content(found: bytes | Exception) -> bytes | None:
    """The content that was found; None if the object is missing. Raises other errors."""
    if isinstance(found, FileNotFoundError):
        return None
    if isinstance(found, Exception):
        raise found
    return bytes(found)


def _kind_and_fix(error: Exception) -> tuple[type[StateError], str]:
    """The kind of an error of a file system, and what to do about it."""
    number, text = getattr(error, "errno", None), str(error).lower()
    if number in _FULL or any(part in text for part in _FULL_TEXTS):
        return StateUnreachable, (
            "the place is full: free some space or raise its quota; then starts and commits go on "
            "by themselves, and a command has to be repeated"
        )
    if number in _FORBIDDEN or isinstance(error, PermissionError):
        return StateError, (
            "give this node's user or credentials the right to list, read, write and remove "
            "objects there"
        )
    if isinstance(error, FileNotFoundError):
        return StateError, "create the bucket or folder of s4.state.url, or correct the URL"
    return StateUnreachable, (
        "check that this node can reach s4.state.url; then starts and commits go on by themselves, "
        "and a command has to be repeated"
    )
