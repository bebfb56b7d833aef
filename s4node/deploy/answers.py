"""What the nodes of a cluster answer to the command line.

Rules
- Nodes are asked at the same time. The first failure ends the others' answers.
- Progress is printed on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

import trio

from s4node.cluster.coordination.node_requests import Requested, requesting
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node import deploy_protocol as protocol
from s4node.config.config import Config
from s4node.errors import DeployFailed

_PATIENCE_SECONDS = 3.0
"""The time after which nodes that have not answered are named."""


def tell(text: str) -> None:
    """Print one line of progress."""
    print(text, file=sys.stderr, flush=True)


async def settings_of(
    registry: Registry, cluster: str, nodes: Collection[str], deployed: dict[str, str], limit: float
) -> Config:
    """The settings of a container of an app that was deployed with some, as the first of the nodes
    says within ``limit`` seconds."""
    ask = protocol.AskSettings(deployed)
    name = min(nodes)
    async with requesting(registry, cluster, [name], ask, protocol.decode_answer) as request:
        answers = await from_all(request, 0, protocol.Settings, limit, "load and check it")
    return Config.from_values(answers[name].settings)


async def from_all(
    request: Requested[protocol.Answer],
    number: int,
    kind: type[protocol.M],
    seconds: float,
    todo: str,
) -> dict[str, protocol.M]:
    """The answers with this number of all nodes within ``seconds``; raises the first failure.

    ``todo`` describes what they are asked to do.
    """
    answers: dict[str, protocol.M] = {}
    failures: list[Exception] = []

    async def ask(node: str, scope: trio.CancelScope) -> None:
        try:
            answer = await request.wait_answer(node, number)
            answers[node] = protocol.of_kind(node, answer, kind)
        except Exception as error:
            failures.append(error)
            scope.cancel()

    async def tell_late() -> None:
        await trio.sleep(_PATIENCE_SECONDS)
        late = [node for node in request.nodes if node not in answers]
        tell(
            f"waiting for {named(late)}, at most {seconds:g} s, to {todo}; "
            f"{'their logs say' if len(late) > 1 else 'its log says'} more"
        )

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as outer:
            outer.start_soon(tell_late)
            async with trio.open_nursery() as nursery:
                for node in request.nodes:
                    nursery.start_soon(ask, node, nursery.cancel_scope)
            outer.cancel_scope.cancel()
    if failures:
        raise failures[0]
    for node in request.nodes:
        if node not in answers:
            raise DeployFailed(
                f"node {node!r} did not answer within {seconds:g} s; it may be stopped: see "
                f"its log, or end it and deploy again"
            )
    return answers


def named(nodes: Collection[str]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(sorted(nodes))}"
