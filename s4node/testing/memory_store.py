"""A place for state at a URL, in memory: an object store that hosts may fail to reach.

Rules
- The store is that of the world that runs. The file system of its URL is in ``memory_file_system``.
- A request of a host that does not reach it fails, and changes nothing. A *doubtful* host's puts
  are written, and their answers are lost.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from s4node.testing.runs import Run

URL = "s4-test://state"


class MemoryStore:
    """The objects of a world; ``here`` is the run that asks, and ``note`` gets what is put."""

    def __init__(
        self, here: Callable[[], Run | None], note: Callable[[str, str, bytes], None]
    ) -> None:
        self.objects: dict[str, bytes] = {}
        self.lost: set[str] = set()
        self.doubtful: set[str] = set()
        self._here = here
        self._note = note

    def request(self) -> None:
        """Raise OSError if the host that asks does not reach the store."""
        run = self._here()
        if run is not None and (run.killed or run.name in self.lost):
            raise OSError(errno.ETIMEDOUT, "the store is not reached")

    def put(self, path: str, data: bytes, *, new: bool) -> None:
        self.request()
        if not new:
            self.objects[path] = data
        elif self.objects.setdefault(path, data) is not data:  # two threads may try at a time
            raise FileExistsError(path)
        run = self._here()
        if run is not None:
            self._note(run.name, path, data)
        if run is not None and run.name in self.doubtful:
            raise OSError(errno.ETIMEDOUT, "the store does not answer")


_store: MemoryStore | None = None


@contextmanager
def reached(store: MemoryStore) -> Iterator[None]:
    """Have the URL lead to this store during the block."""
    global _store
    before, _store = _store, store
    try:
        yield
    finally:
        _store = before


def current() -> MemoryStore:
    assert _store is not None
    return _store
