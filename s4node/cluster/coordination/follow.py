"""Following what is in the coordination.

Rules
- Trouble is waited out: only the end of the session is the end of following.
- It is told once, until it is another one or a step has worked, which is told to who asks for it.
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
    """Take one ``step`` after the other until cancelled; raises SessionLost.

    ``on_trouble`` is called with the reason why a step has failed, which is then taken again, and
    ``on_well`` when one has worked after that: a step that waits for news must not wait again then.
    """
    told = ""
    while True:
        try:
            await step()
        except SessionLost:
            raise
        except CoordinationError as error:
            if told != str(error):
                told = str(error)
                on_trouble(told)
            await trio.sleep(_RETRY_SECONDS)
        else:
            if told:
                on_well()
            told = ""
