"""A node's memory of its cluster: deployments, failed containers, failovers and moves."""

from __future__ import annotations

import msgspec

from s4node.cluster.coordination.assignment import Assignment, Owner
from s4node.cluster.coordination.entries import AppInfo, Found, Group, MemberInfo
from s4node.cluster.node.container_status import ContainerStatus
from s4node.cluster.node.history import MOST, History


def info(version: str, state: str = "running") -> AppInfo:
    return AppInfo("shop", "default", version, 4, f"package {version}", state=state)


def group(living: str, owners: str, epoch: int = 1) -> Group:
    """An app with a member for each letter, and an owner for each partition."""
    members = tuple(
        Found(MemberInfo(each, each, "host", 1, f"tcp://{each}", "1", 4), 1, each, 1)
        for each in living
    )
    owned = tuple(Owner(each, f"tcp://{each}", each, epoch) for each in owners)
    return Group(members, Found(Assignment(epoch, owned), epoch, "", 1))


def told(history: History) -> list[tuple[int, str, str, str]]:
    return [(each.ms, each.kind, each.text, each.cause) for each in history.last]


def test_a_new_version_a_stop_and_a_removal_are_deployments() -> None:
    history = History()
    history.seen(1, {}, {})
    history.seen(2, {"shop": info("1")}, {})
    history.seen(3, {"shop": info("2")}, {})
    history.seen(4, {"shop": info("2")}, {})
    history.seen(5, {"shop": info("2", "stopped")}, {})
    history.seen(6, {"shop": info("2")}, {})
    history.seen(7, {}, {})
    assert told(history) == [
        (2, "deployment", "version 1 is deployed", ""),
        (3, "deployment", "version 2 replaces 1", ""),
        (5, "deployment", "is to be stopped", ""),
        (6, "deployment", "runs again", ""),
        (7, "deployment", "was removed", ""),
    ]


def test_partitions_of_a_member_that_is_gone_have_failed_over_and_others_have_moved() -> None:
    history, apps = History(), {"shop": info("1")}
    history.seen(1, apps, {"shop": group("ab", "aabb")})
    history.seen(2, apps, {"shop": group("ab", "aaab", 2)})
    history.seen(3, apps, {"shop": group("b", "aaab", 2)})
    history.seen(4, apps, {"shop": group("b", "bbbb", 3)})
    found = [each for each in told(history) if each[1] != "deployment"]
    assert found == [
        (2, "move", "partition 2 of b went to a", ""),
        (4, "failover", "partitions 0, 1, 2 of a went to b", "a has left or failed"),
    ]


def test_each_failure_of_a_container_is_noted_once_and_a_hundred_are_kept() -> None:
    history = History()
    one = ContainerStatus("shop", "one", "1", "waiting", None, "", 2, "it was ended by SIGKILL", 7)
    history.failed_once(msgspec.structs.replace(one, failure="", failed_ms=0))
    history.failed_once(one)
    history.failed_once(one)
    assert told(history) == [
        (7, "restart", "the container on one ended", "it was ended by SIGKILL")
    ]
    for ms in range(8, 200):
        history.failed_once(msgspec.structs.replace(one, failed_ms=ms))
    assert len(history.last) == MOST
    assert history.last[-1].ms == 199


def test_a_version_that_was_never_run_is_a_deployment_that_failed() -> None:
    history = History()
    one = ContainerStatus("shop", "one", "2", "ended", None, "", 1, "no key 'user'", 7)
    history.failed_once(one, is_new=True)
    history.failed_once(one, is_new=True)
    assert told(history) == [(7, "deployment", "version 2 cannot run on one", "no key 'user'")]
