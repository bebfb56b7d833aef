"""What the nodes of a cluster answer to the command line.

Rules
- Nodes are asked at the same time. The first failure ends the others' answers.
- Progress is printed on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

import trio

from s4node.cluster.coordination.registry import NodeInfo
from s4node.cluster.node import admin
from s4node.config.config import Config
from s4node.errors import DeployFailed

_PATIENCE_SECONDS = 3.0
"""The time after which nodes that have not answered are named."""


def tell(text: str) -> None:
    """Print one line of progress."""
    print(text, file=sys.stderr, flush=True)


async def settings_of(nodes: dict[str, NodeInfo], deployed: dict[str, str], limit: float) -> Config:
    """The settings of a container of an app that was deployed with some, as the first of the nodes
    says within ``limit`` seconds."""
    todo = "load and check it"
    ask = admin.AskSettings(deployed)
    name, node = min(nodes.items())
    async with admin.asking(name, node.admin, ask) as caller:
        answers = await from_all([caller], admin.Settings, limit, todo)
    return Config.from_values(answers[name].settings)


async def from_all(
    callers: list[admin.Caller], kind: type[admin.M], seconds: float, todo: str
) -> dict[str, admin.M]:
    """The next answers of all callers within ``seconds``, by node; raises the first failure.

    ``todo`` describes what they are asked to do.
    """
    answers: dict[str, admin.M] = {}
    failures: list[Exception] = []

    async def ask(caller: admin.Caller, scope: trio.CancelScope) -> None:
        try:
            answers[caller.node] = await caller.answer(kind)
        except Exception as error:
            failures.append(error)
            scope.cancel()

    async def tell_late() -> None:
        await trio.sleep(_PATIENCE_SECONDS)
        late = [caller.node for caller in callers if caller.node not in answers]
        tell(
            f"waiting for {named(late)}, at most {seconds:g} s, to {todo}; "
            f"{'their logs say' if len(late) > 1 else 'its log says'} more"
        )

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as outer:
            outer.start_soon(tell_late)
            async with trio.open_nursery() as nursery:
                for caller in callers:
                    nursery.start_soon(ask, caller, nursery.cancel_scope)
            outer.cancel_scope.cancel()
    if failures:
        raise failures[0]
    for caller in callers:
        if caller.node not in answers:
            raise DeployFailed(
                f"node {caller.node!r} did not answer within {seconds:g} s; it may be stopped: see "
                f"its log, or end it and deploy again"
            )
    return answers


def named(nodes: Collection[str]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(sorted(nodes))}"
