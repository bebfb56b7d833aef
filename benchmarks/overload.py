"""overload: ten times the rate that a slow PE can process, with each policy of its stage.

Blocking loses nothing and slows its source; shedding and throttling drop what does not fit, and
every event is accounted for: processed + dropped = sent, by the node's and by the producer's count.
Memory stays below that of the idle node plus one and a half times the configured bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from benchmarks.runner import (
    Result,
    Role,
    answer,
    asked,
    container_of,
    listen,
    resident_mb,
    running,
    usage,
)
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.events.event import Event
from s4node.net.client.client import Client

HANDLER_SECONDS = 0.001
TAKES = int(1 / HANDLER_SECONDS)
"""The most events a second that the PE can process."""

RATE = 10 * TAKES
"""Events a second that are offered."""

EVENT_BYTES, QUICK_EVENT_BYTES = 1024, 16_384
"""A quick run fills the stage with fewer events, so that it ends sooner."""

STAGE_BYTES = 24 << 20
MAX_RATE = TAKES // 2
"""The events a second that the throttled stage lets leave."""


class Package(Event):
    key: int
    payload: bytes


class Slow(ProcessingElement):
    """A PE that waits for each event."""

    count: int = 0

    async def on_event(self, package: Package) -> None:  # noqa: ARG002 - only its coming counts
        """Wait, as for another service."""
        await trio.sleep(HANDLER_SECONDS)
        self.count += 1


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each policy."""
    seconds, size = (0.4, QUICK_EVENT_BYTES) if quick else (20.0, EVENT_BYTES)
    results = []
    for policy in ("block", "shed", "throttle"):
        say(
            f"{policy}: {RATE:,} events/s of {size} bytes for {seconds:g} s, "
            f"to a PE that takes {TAKES:,}"
        )
        results.append(_one(policy, seconds, size))
    return results


def _one(policy: str, seconds: float, size: int) -> Result:
    settings = {
        "s4.stream.executor": policy,
        "s4.stream.workQueueSize": "1000000",
        "s4.stream.workQueueBytes": str(STAGE_BYTES),
        "s4.stream.maxRate": str(MAX_RATE),
        "s4.deserializer.workQueueSize": "1000000",
        "s4.deserializer.workQueueBytes": str(STAGE_BYTES),
    }
    with Role("overload.slow_node", settings=settings) as node:
        address = node.hear()["address"]
        with Role(
            "overload.pressing", address=address, seconds=seconds, rate=RATE, size=size
        ) as producer:
            producer.hear()
            idle = node.ask()["peak_mb"]
            producer.tell({})
            sent = producer.hear()
        node.tell({})
        took = node.hear()
    allowed = idle + 1.5 * STAGE_BYTES / 1e6
    checked = (
        sent["admitted"] + sent["shed"] == sent["sent"]
        and (took["processed"], took["shed"]) == (sent["admitted"], sent["shed"])
        and took["counted"] == took["processed"]
        and took["peak_mb"] <= allowed
        and (policy != "block" or not sent["shed"])
    )
    return Result(
        "overload",
        events=sent["sent"],
        seconds=sent["seconds"],
        events_per_s=took["processed"] / sent["seconds"],
        limit_events_per_s=TAKES,
        ratio=took["processed"] / sent["seconds"] / TAKES,
        rss_mb=took["peak_mb"],
        checked=checked,
        notes={
            "policy": policy,
            "max_rate": MAX_RATE if policy == "throttle" else None,
            "processed": took["processed"],
            "dropped": took["shed"],
            "idle_mb": idle,
            "allowed_mb": allowed,
            "source_waited_s": sent["waited"],
        },
    )


# --- the processes -------------------------------------------------------------------------------


def slow_node(task: dict[str, Any]) -> None:
    """Run a node with the slow PE; report peak memory on request, and the counts at the end."""

    async def main() -> None:
        app = App("overload")
        app.create_input_stream("packages", app.create_pe(Slow), key="key")
        values = {"s4.watchdog.ms": "0", **task["settings"]}
        async with running(container_of(app, values)) as container:
            answer(address=container.address)
            while await asked():
                answer(peak_mb=usage()["rss_mb"] * 1.048576, resident_mb=resident_mb())
            slow = [pe for one in container.tasks.values() for pe in one.instances["Slow"].values()]
            told = container.statistics()
            answer(
                processed=told.processed,
                counted=sum(pe.count for pe in slow),  # type: ignore[attr-defined]
                shed=sum(sum(stage.shed.values()) for stage in told.stages),
                peak_mb=usage()["rss_mb"] * 1.048576,
            )

    trio.run(main)


def pressing(task: dict[str, Any]) -> None:
    """Send events at a rate, and wait if made to; report the outcome."""

    async def main() -> None:
        payload = bytes(task["size"])
        async with Client(task["address"], queue_size=1000) as client:
            stream = await client.stream("packages", types=Package)
            await stream.send_many([Package(n, payload) for n in range(50)])
            await stream.flush()
            answer(ready=True)
            listen()
            part = task["rate"] // 100
            sent, waited = 50, 0.0
            began = trio.current_time()
            for tick in range(int(task["seconds"] * 100)):
                await trio.sleep_until(began + tick / 100)
                before = trio.current_time()
                if before > began + task["seconds"]:
                    break  # it was made to wait
                await stream.send_many([Package(n, payload) for n in range(part)])
                sent += part
                waited += trio.current_time() - before
            await stream.flush()
            counts = stream.counts
            answer(
                sent=sent,
                admitted=counts["admitted"],
                shed=counts["shed"],
                waited=waited,
                seconds=trio.current_time() - began,
            )

    trio.run(main)
