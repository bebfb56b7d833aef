"""What a node reports of a container process, besides its statistics. Pure."""

from __future__ import annotations

import msgspec


class ContainerStatus(msgspec.Struct, frozen=True):
    """A container process; ``failure`` is why it last ended without being asked, and ``failed_ms``
    when (ms since 1970; 0 if it has not)."""

    app: str
    node: str
    version: str
    phase: str
    pid: int | None
    address: str
    starts: int
    failure: str = ""
    failed_ms: int = 0
