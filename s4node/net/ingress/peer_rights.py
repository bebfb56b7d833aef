"""The rights of a peer with a certificate, by its role. Pure.

Rules
- ``MAY`` is the whole decision. Listeners ask ``refusal`` about each frame before anything else
  sees it. Without TLS nobody is known, and everybody may do everything.
- A peer is what its certificate says for the node's own cluster. In other clusters it may be
  something else; only the ids of tasks look there.
- Only a node may claim to be a member or a task, and a task only of a cluster in which it is a
  node. What a node says of itself is believed otherwise: it forwards events of any producer.
- Any other peer's producer ids are the name in its certificate, or begin with it and a ``/``.
"""

from __future__ import annotations

from s4node.net.certificates.identity import NODE, OPERATOR, PRODUCER, READER, ROLES, Holder
from s4node.net.wire import frame as wire

PRODUCE, READ, LOOK, CHANGE, WATCH = REQUESTS = (
    "send events",
    "read streams and state",
    "ask what the log has",
    "create, trim or remove what the log has",
    "ask how a node is",
)
"""The kinds of requests."""

MAY = {
    NODE: frozenset(REQUESTS),
    PRODUCER: frozenset({PRODUCE, LOOK}),
    READER: frozenset({READ, LOOK}),
    OPERATOR: frozenset(REQUESTS),
}

_QUESTIONS = {
    "are you there": LOOK,  # the probe of an address
    "list": LOOK,
    "describe": LOOK,
    "offset": LOOK,
    "sink.list": LOOK,
    "sink.carried": LOOK,
    "append": PRODUCE,
    "sink.stage": PRODUCE,
    "sink.publish": PRODUCE,
    "sink.abort": PRODUCE,
    "sink.end": PRODUCE,
    "node.status": WATCH,
    "state.key": READ,
    "state.page": READ,
}
"""The requests that are questions; all others are changes."""

_CLAIMS = (wire.CLUSTER, wire.FENCE)
"""Headers with which a hello claims to be a member's or a task's."""


def unwelcome(peer: Holder, cluster: str) -> str:
    """The reason why a node of ``cluster`` refuses a peer; empty if it may ask something."""
    if cluster in peer.roles:
        return ""
    return f"its certificate is that of {peer}, which names nobody in cluster {cluster!r}"


def refusal(peer: Holder, cluster: str, header: wire.Header) -> str:
    """The reason why a peer may not send a frame to a node of ``cluster``; empty if it may."""
    role = peer.roles[cluster]
    request = _request_of(header)
    if request and request not in MAY[role]:
        able = " or ".join(each for each in ROLES if request in MAY[each])
        return (
            f"{peer} may not {request}: {role}s may {_listed(role)}; this needs a certificate of "
            f"the role {able}"
        )
    if request == PRODUCE:
        return _not_its_own(peer, role, header)
    return ""


def _not_its_own(peer: Holder, role: str, header: wire.Header) -> str:
    """The reason why a peer may not claim what its frame claims; empty if it may."""
    producer = _producer_of(header)
    if producer.startswith(wire.TASK):
        home = producer[len(wire.TASK) :].partition("/")[0]
        if peer.roles.get(home) != NODE:
            return f"{peer} may not be the task {producer!r}: only a node of cluster {home!r} may"
        return ""
    if role == NODE:
        return ""
    if isinstance(header, wire.Hello):
        claimed = [claim for claim in _CLAIMS if claim in header.headers]
        if claimed:
            return (
                f"{peer} may not be a member or a task, which a hello with {', '.join(claimed)} "
                f"claims: only a node may"
            )
    if not peer.owns(producer):
        return (
            f"{peer} may not be the producer {producer!r}: its ids are {peer.name!r} and those "
            f"that begin with {peer.name + '/'!r}"
        )
    return ""


def _request_of(header: wire.Header) -> str:
    """The kind of request that a frame is; empty for one that anybody may send."""
    if isinstance(header, wire.Hello):
        return READ if header.headers.get(wire.SUBSCRIBE) else PRODUCE
    if isinstance(header, wire.Query):
        return _QUESTIONS.get(header.question, CHANGE)
    if isinstance(header, (wire.Verdict, wire.EndOfStream, wire.Drain, wire.Answer)):
        return ""  # of what the connection has opened
    return PRODUCE


def _producer_of(header: wire.Header) -> str:
    """The producer, or the sink, that a frame names."""
    if isinstance(header, wire.Hello):
        return header.peer
    if isinstance(header, wire.Query):
        return str(header.arguments.get("producer", header.arguments.get("sink", "")))
    return "" if isinstance(header, (wire.Drain, wire.Answer)) else header.producer


def _listed(role: str) -> str:
    return ", ".join(request for request in REQUESTS if request in MAY[role])
