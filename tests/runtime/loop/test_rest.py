"""Time that counts as rest: a process has nothing to do."""

from __future__ import annotations

import time

import trio

from s4node.runtime.loop.run_loop import Rest


async def test_a_process_rests_while_all_of_it_waits_and_not_while_it_works() -> None:
    with Rest() as rest:
        await trio.sleep(0.2)
        waited = rest.seconds
        began = time.perf_counter()
        while time.perf_counter() < began + 0.2:
            pass
        worked = rest.seconds - waited
    assert waited > 0.15
    assert worked < waited / 2
    after = rest.seconds
    await trio.sleep(0.01)
    assert rest.seconds == after
