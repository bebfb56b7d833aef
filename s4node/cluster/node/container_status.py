"""The status of a container process, as its node reports it. Pure."""

from __future__ import annotations

import msgspec


class ContainerStatus(msgspec.Struct, frozen=True):
    """A container process; ``failure`` is the reason of its last failure, and ``failed_ms`` its
    time (ms since 1970; 0 if it has not failed)."""

    app: str
    node: str
    version: str
    phase: str
    pid: int | None
    address: str
    starts: int
    failure: str = ""
    failed_ms: int = 0
