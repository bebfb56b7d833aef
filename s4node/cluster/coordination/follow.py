"""The follow loop: repeats a step on the coordination, and waits out its errors.

Rules
- Only the end of the session ends following.
- An error is reported once, until it changes or a step succeeds. Recovery is reported, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from s4node.errors import CoordinationError, SessionLost

_RETRY_SECONDS = 1.0


async def follow(
    step: Callable[[], Awaitable[None]],
    on_trouble: Callable[[str], None],
    on_well: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Repeat ``step`` until cancelled; raises SessionLost.

    ``on_trouble`` is called with the reason when a step has failed; it is then retried. ``on_well``
    is called when a step has succeeded after that: the next step should not wait for news.
    """
    reported = ""
    while True:
        try:
            await step()
        except SessionLost:
            raise
        except CoordinationError as error:
            if reported != str(error):
                reported = str(error)
                on_trouble(reported)
            await trio.sleep(_RETRY_SECONDS)
        else:
            if reported:
                on_well()
            reported = ""
