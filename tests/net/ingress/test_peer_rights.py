"""The rights of each role, as a table."""

from __future__ import annotations

import pytest

from s4node.net.certificates.identity import ROLES, Holder, unfit_to_serve
from s4node.net.ingress.peer_rights import refusal, unwelcome
from s4node.net.wire import frame as wire

FRAMES: dict[str, wire.Header] = {
    "hello": wire.Hello("me", "1", "s"),
    "hello of a part": wire.Hello("me/3", "1", "s"),
    "data": wire.Data("s", 0, "me", 0, 1, ()),
    "idle": wire.Idle("s", "me"),
    "watermark": wire.Watermark("s", "me", 1),
    "append": wire.Query(1, "append", {"producer": "me"}),
    "publish": wire.Query(1, "sink.publish", {"sink": "me/job"}),
    "subscribe": wire.Hello("x", "1", "s", headers={wire.SUBSCRIBE: True}),
    "list": wire.Query(1, "list"),
    "create": wire.Query(1, "create", {"stream": "s"}),
    "trim": wire.Query(1, "trim", {"stream": "s"}),
    "drop": wire.Query(1, "drop", {"stream": "s"}),
    "forget": wire.Query(1, "forget", {"producer": "me"}),
    "unconfirmed of": wire.Query(1, "burn"),
    "another's hello": wire.Hello("you", "1", "s"),
    "another's longer hello": wire.Hello("me-too", "1", "s"),
    "another's data": wire.Data("s", 0, "you", 0, 1, ()),
    "another's idle": wire.Idle("s", "you"),
    "another's append": wire.Query(1, "append", {"producer": "you"}),
    "another's sink": wire.Query(1, "sink.abort", {"sink": "you/job"}),
    "member": wire.Hello("me", "1", "s", headers={wire.CLUSTER: "home"}),
    "fence": wire.Hello("me", "1", "s", headers={wire.FENCE: 9}),
    "task": wire.Hello("~home/app/0#1", "1", "s", headers={wire.FENCE: 9}),
    "task's data": wire.Data("s", 0, "~home/app/0#1", 0, 1, ()),
    "node's status": wire.Query(1, "node.status", {"node": "one"}),
    "drain": wire.Drain("bye"),
    "probe": wire.Query(0, "are you there"),
}
SENDS = {"hello", "hello of a part", "data", "idle", "watermark", "append", "publish"}
CHANGES = {"create", "trim", "drop", "forget", "unconfirmed of"}
MAY = {
    "node": set(FRAMES),
    "producer": {*SENDS, "list", "drain", "probe"},
    "reader": {"subscribe", "list", "drain", "probe"},
    "operator": {*SENDS, *CHANGES, "subscribe", "list", "node's status", "drain", "probe"},
}


def me(**roles: str) -> Holder:
    return Holder("me", roles, 1, 1e12)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_send_these_frames_and_no_others(role: str) -> None:
    allowed = {name for name, frame in FRAMES.items() if not refusal(me(home=role), "home", frame)}
    assert allowed == MAY[role]


def test_a_refusal_says_what_the_role_may_and_which_role_is_needed() -> None:
    assert refusal(me(home="reader"), "home", FRAMES["node's status"]) == (
        "s4://home/reader/me may not ask how a node is: readers may read streams and state, ask "
        "what the log has; this needs a certificate of the role node or operator"
    )


def test_only_a_node_of_its_cluster_is_a_task() -> None:
    task = wire.Hello("~east/app/0#1", "1", "s", headers={wire.FENCE: 9})
    assert refusal(me(home="node"), "home", task) == (
        "s4://home/node/me may not be the task '~east/app/0#1': only a node of cluster 'east' may"
    )
    assert not refusal(me(east="node", home="producer"), "home", task)


def test_a_peer_needs_an_identity_in_the_cluster_of_the_node() -> None:
    assert "names nobody in cluster 'home'" in unwelcome(me(east="node"), "home")
    assert not unwelcome(me(east="node", home="reader"), "home")


def test_who_dials_wants_a_node_of_one_of_its_own_clusters() -> None:
    ours = me(home="producer", east="node")
    for unfit in (me(home="producer"), me(west="node"), me(west="node", home="operator")):
        assert "is not a node of home or east" in unfit_to_serve(unfit, ours)
    for fit in (me(home="node"), me(east="node"), me(west="reader", home="node")):
        assert not unfit_to_serve(fit, ours)


@pytest.mark.parametrize(
    ("uris", "problem"),
    [
        ([], "it has no identity"),
        (["https://home/node/a"], "it has no identity"),
        (["s4://home/node"], "is not an identity; write s4://CLUSTER/ROLE/NAME"),
        (["s4://home/node/a/b"], "is not an identity"),
        (["s4://home/node/~a"], "is not an identity"),
        (["s4://home/king/a"], "has the role 'king'; roles are node, producer, reader, operator"),
        (["s4://home/node/a", "s4://home/reader/a"], "are not one for each cluster"),
        (["s4://home/node/a", "s4://east/node/b"], "all with the same name"),
    ],
)
def test_a_certificate_with_other_identities_is_not_one_of_a_peer(
    uris: list[str], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        Holder.of(uris, 1, 1.0)
