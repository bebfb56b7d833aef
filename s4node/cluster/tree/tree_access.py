"""Who can use the entries of a tree in ZooKeeper: with credentials, only those who have them.

Rules
- A root without entries is closed to others. A root of which others can use an entry is refused.
- The entries below one are listed once it is known to be closed: others can add none then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from kazoo.exceptions import NoNodeError

from s4node.cluster.tree.contract import LastingTreeError
from s4node.cluster.tree.kazoo_client import OneSessionClient
from s4node.errors import CoordinationError

_AT_ONCE = 100
"""How many entries are asked for at a time."""


class TreeAccess:
    """The access to the entries below ``root``; ``call`` sends a request of ``client``."""

    def __init__(
        self,
        client: OneSessionClient,
        call: Callable[[Callable[[], Any]], Awaitable[Any]],
        url: str,
        root: str,
    ) -> None:
        self._client = client
        self._call = call
        self._url = url
        self._root = root

    async def close_root(self) -> None:
        """Close an empty root to others; raises LastingTreeError if they can use a filled one, or
        an entry right below it."""
        root, client = self._root, self._client
        await self._call(lambda: client.sync_async(root))  # this server may be behind the others
        acl, _ = await self._call(lambda: client.get_acls_async(root))
        if not (client.has_alone(acl) or await self._call(lambda: client.get_children_async(root))):
            await self._call(lambda: client.set_acls_async(root, client.default_acl))
        for place in await self._below_closed(root):
            await self._below_closed(place)

    async def check_closed(self) -> None:
        """Raise LastingTreeError if others can use an entry."""
        failures: list[CoordinationError] = []

        async def add_below(place: str, below: list[str]) -> None:
            try:
                below += await self._below_closed(place)
            except CoordinationError as error:
                failures.append(error)

        level = [self._root]
        while level:
            below: list[str] = []
            for first in range(0, len(level), _AT_ONCE):
                async with trio.open_nursery() as nursery:
                    for place in level[first : first + _AT_ONCE]:
                        nursery.start_soon(add_below, place, below)
                if failures:
                    raise failures[0]
            level = below

    async def _below_closed(self, place: str) -> list[str]:
        """The entries below one that others cannot use; raises LastingTreeError if they can."""
        client = self._client
        try:
            acl, stat = await self._call(lambda: client.get_acls_async(place))
            if not client.has_alone(acl):
                raise LastingTreeError(
                    f"programs without these credentials can use the entry {place} of {self._url}; "
                    f"name a new root in s4.coordination, or see that nobody has changed anything "
                    f"there, and give all of it to the credentials alone (setAcl -R in zkCli.sh)"
                )
            if not stat.numChildren:
                return []
            parts = await self._call(lambda: client.get_children_async(place))
        except NoNodeError:  # deleted meanwhile
            return []
        return [f"{place}/{part}" for part in parts]
