"""Containers sharing out an app's partitions: joining, dying, leaving, on a real folder."""

from __future__ import annotations

import resource
import signal
import sqlite3
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from conformance.coordination import Peer, python_process
from harness import ROOT, limited, plain_errors, until
from structlog.testing import capture_logs

from s4node.cluster.coordination import membership
from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.membership import Membership, View
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.contract import Entry
from s4node.cluster.tree.folder import FolderCoordination, FolderSession
from s4node.errors import CoordinationError, NameTaken, SessionLost

# --- the first assignment ------------------------------------------------------------------------


async def test_a_member_that_is_alone_owns_everything(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        assert a.view == View(
            epoch=1,
            owners=("tcp://a",) * 4,
            epochs=(1, 1, 1, 1),
            mine=frozenset({0, 1, 2, 3}),
            members=("tcp://a",),
            origin=a.view.origin,
        )
        assert a.view.origin


async def test_epochs_count_in_one_origin_until_the_app_is_removed(tmp_path: Path) -> None:
    async with seat(tmp_path, "a", expected=2) as a, seat(tmp_path, "b", expected=2) as b:
        await until(lambda: a.view.epoch == b.view.epoch == 1)
        origin = a.view.origin
        await a.membership.leave()
        await owners([b], "bbbb")
        assert b.view.epoch > 1
        assert b.view.origin == origin
        await b.membership.leave()
        # b may still be claiming what it was given in its last epoch, in the name of that origin
        async with FolderCoordination(tmp_path).session("remover") as session:
            await Registry(session).remove_app("east", "count")
    async with seat(tmp_path, "a") as again:
        await owners([again], "aaaa")
        assert again.view.epoch == 1
        assert again.view.origin not in ("", origin)


async def test_nothing_is_shared_out_before_the_expected_members_are_there(tmp_path: Path) -> None:
    async with seat(tmp_path, "a", expected=3) as a, seat(tmp_path, "b", expected=3) as b:
        await until(lambda: len(a.view.members) == len(b.view.members) == 2)
        assert a.view.epoch == b.view.epoch == 0
        assert a.owners == b.owners == "...."
        async with seat(tmp_path, "c", expected=3) as c:
            await until(lambda: a.view.epoch == b.view.epoch == c.view.epoch == 1)
            assert sorted(len(s.mine) for s in (a, b, c)) == [1, 1, 2]
            assert a.view.owners == b.view.owners == c.view.owners


async def test_after_the_gather_time_those_who_are_there_share(tmp_path: Path) -> None:
    async with (
        seat(tmp_path, "a", expected=3, gather=1.0) as a,
        seat(tmp_path, "b", expected=3, gather=1.0) as b,
    ):
        await until(lambda: len(a.mine) == len(b.mine) == 2)


async def test_apps_do_not_meet(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a, seat(tmp_path, "a", app="other", partitions=2) as other:
        await owners([a], "aaaa")
        await owners([other], "aa")


# --- coming and going ----------------------------------------------------------------------------


async def test_a_late_member_is_a_spare_and_takes_over_at_once(tmp_path: Path) -> None:
    async with seat(tmp_path, "a", expected=2) as a, seat(tmp_path, "b", expected=2) as b:
        await until(lambda: len(a.mine) == len(b.mine) == 2)
        async with seat(tmp_path, "c", expected=2) as c:
            await until(lambda: len(a.view.members) == len(c.view.members) == 3)
            assert c.mine == []
            given_up = b.mine
            await b.membership.leave()
            await until(lambda: c.mine == given_up, "the spare has them")
            assert sorted(a.mine + c.mine) == [0, 1, 2, 3]


async def test_a_member_with_more_than_its_share_hands_over_what_it_has_stopped_with(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        async with seat(tmp_path, "b") as b:
            await until(lambda: b.view.coming == {2, 3}, "b knows its share")
            assert (a.mine, b.mine) == ([0, 1, 2, 3], [])
            assert (a.view.coming, a.view.to_hand_over) == (set(), set())
            await b.membership.take([2, 3])
            await until(lambda: a.view.to_hand_over == {2, 3}, "a owes two")
            await a.membership.hand_over([3])
            await owners([a, b], "aaab")
            assert (b.view.coming, b.view.epochs) == ({2}, (1, 1, 1, 2))
            await b.membership.take([2])
            await until(lambda: a.view.to_hand_over == {2}, "b takes events of the other")
            await a.membership.hand_over([2])
            await owners([a, b], "aabb")
            assert (a.view.to_hand_over, b.view.epochs) == (set(), (1, 1, 3, 2))
            assert b.view.coming == set()


async def test_a_member_owes_only_partitions_that_their_next_owner_is_ready_for(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        async with seat(tmp_path, "b") as b:
            await until(lambda: b.view.coming == {2, 3})
            await b.membership.take([1, 3])  # of which it will not get the first
            await until(lambda: a.view.to_hand_over == {3})
            await a.membership.hand_over([3])
            await owners([a, b], "aaab")
            assert a.view.to_hand_over == set()
            await b.membership.take([2])  # it owns a partition now, and is heard all the same
            await until(lambda: a.view.to_hand_over == {2})
        await owners([a], "aaaa")
        async with seat(tmp_path, "b") as b:  # another one, which has said nothing yet
            await until(lambda: b.view.coming == {2, 3} and len(a.view.members) == 2)
            assert (a.owners, a.view.to_hand_over) == ("aaaa", set())


async def test_a_standby_and_the_owner_change_places(tmp_path: Path) -> None:
    async with seat(tmp_path, "a", follows=True) as a:
        await owners([a], "aaaa")
        async with seat(tmp_path, "b", follows=True) as b:
            await until(lambda: b.view.follows == {0, 1, 2, 3}, "b is the standby of all")
            await until(lambda: b.view.coming == {2, 3}, "b knows its share")
            await b.membership.take([3])
            await until(lambda: a.view.to_hand_over == {3}, "b has its state")
            await a.membership.hand_over([3])
            await owners([a, b], "aaab")
            await until(lambda: (a.view.follows, b.view.follows) == ({3}, {0, 1, 2}))


async def test_a_standby_in_another_zone_takes_over(tmp_path: Path) -> None:
    async with (
        seat(tmp_path, "b", expected=3, zone="one", follows=True) as b,
        seat(tmp_path, "c", expected=3, zone="two", follows=True) as c,
    ):
        async with seat(tmp_path, "a", expected=3, zone="one", follows=True) as a:
            await until(lambda: bool(a.mine) and set(a.mine) <= c.view.follows, "c follows a")
            had = set(a.mine)
            await a.membership.leave()
        await until(lambda: had <= set(c.mine), "the standby has it")
        assert not had & set(b.mine)


async def test_what_nobody_is_owed_to_any_more_comes_back_anew(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        async with seat(tmp_path, "b") as b:
            await owes_two(a, b)
            await b.membership.leave()
        await until(lambda: a.view.members == ("tcp://a",))
        await a.membership.hand_over([3])
        await until(lambda: a.view.epochs == (1, 1, 1, 2))
        assert a.mine == [0, 1, 2, 3]


async def test_a_partition_goes_to_no_member_that_is_not_ready_for_it(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        async with seat(tmp_path, "b") as b:
            await owes_two(a, b)
            async with seat(tmp_path, "c") as c:
                await until(lambda: (b.view.coming, c.view.coming) == ({2}, {3}), "c gets one")
                await until(lambda: a.view.to_hand_over == {2})
                await a.membership.hand_over([3])  # which was stopped for b
                await until(lambda: a.view.epochs == (1, 1, 1, 2))
                assert a.mine == [0, 1, 2, 3]
                await c.membership.take([3])
                await until(lambda: a.view.to_hand_over == {2, 3})
                await a.membership.hand_over([3])
                await owners([a, b, c], "aaac")


async def test_a_partition_that_stops_slowly_goes_to_the_member_that_was_ready_for_it(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        async with seat(tmp_path, "b") as b:
            await owes_two(a, b)
            await b.membership.take([2])  # as it has waited for the other one for too long
            await until(lambda: a.view.to_hand_over == {2})
            await a.membership.hand_over([3])
            await owners([a, b], "aaab")


async def test_partitions_are_handed_over_one_after_the_other_to_several_members(
    tmp_path: Path,
) -> None:
    async with one_taken_of_two(tmp_path) as (a, b):
        await until(lambda: a.owners == "aaba" and not a.view.to_hand_over, "b takes it over")
        await b.membership.take([])
        await until(lambda: a.view.to_hand_over == {3}, "b takes events")


async def test_a_new_owner_that_hangs_holds_up_what_goes_to_others_only_for_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "TAKING_SECONDS", 0.5)
    async with one_taken_of_two(tmp_path) as (a, _):
        await until(lambda: a.owners == "aaba" and a.view.to_hand_over == {3}, "b has had its time")


async def test_handing_over_waits_until_it_can_be_written(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        async with seat(tmp_path, "b") as b, trio.open_nursery() as nursery:
            await owes_two(a, b)
            with capture_logs() as logs, limited(resource.RLIMIT_FSIZE, 1):
                nursery.start_soon(a.membership.hand_over, [3])
                await until(lambda: any(line["event"] == "cannot hand over" for line in logs))
            await owners([a, b], "aaab")


async def test_a_member_that_has_left_has_nothing_to_hand_over(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        async with seat(tmp_path, "b") as b:
            await owes_two(a, b)
            await a.membership.leave()
            await a.membership.hand_over([3])
            await owners([b], "bbbb")


async def test_a_spare_does_not_gather_when_the_only_owner_goes(tmp_path: Path) -> None:
    async with member_process(tmp_path, "a") as a:
        assert await a.line() == "1 a,a,a,a 1,1,1,1 0,1,2,3"
        async with seat(tmp_path, "b", expected=2) as b:
            await owners([b], "aaaa")
            await a.kill()
            await owners([b], "bbbb")
            assert b.view.epochs == (2, 2, 2, 2)
            assert b.view.members == ("tcp://b",)


async def test_with_so_many_containers_the_other_members_are_spares_that_take_over(
    tmp_path: Path,
) -> None:
    async with (
        seat(tmp_path, "a", expected=3, containers=2) as a,
        seat(tmp_path, "b", expected=3, containers=2) as b,
    ):
        async with seat(tmp_path, "c", expected=3, containers=2) as c:
            seats = sorted([a, b, c], key=lambda seat: not seat.mine)
            await until(lambda: all(seat.view.epoch == 1 for seat in seats))
            seats.sort(key=lambda seat: not seat.mine)
            assert [len(seat.mine) for seat in seats] == [2, 2, 0]
            spare_was_c = seats[2] is c
        epoch = 1 if spare_was_c else 2
        await until(lambda: a.view.epoch == b.view.epoch == epoch)
        assert sorted([len(a.mine), len(b.mine)]) == [2, 2]


async def test_after_a_restart_with_another_number_few_partitions_change_their_member(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as first:
        seats = [await first.enter_async_context(seat(tmp_path, n, expected=2)) for n in "ab"]
        await until(lambda: all(s.view.epoch == 1 for s in seats))
        before = seats[0].owners
    async with AsyncExitStack() as second:
        seats = [
            await second.enter_async_context(seat(tmp_path, n, partitions=4, expected=3))
            for n in "cba"
        ]
        await until(lambda: all(s.view.epoch == 2 for s in seats))
        after = seats[0].owners
    assert sorted(after.count(name) for name in "abc") == [1, 1, 2]
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 1


async def test_a_member_that_cannot_reach_the_state_gets_nothing_whoever_dies(
    tmp_path: Path,
) -> None:
    async with FolderCoordination(tmp_path).session("first") as session:
        await Registry(session).job.set_state(AppId("east", "count"), "one")
    async with seat(tmp_path, "b", expected=3, state="other") as b:
        async with seat(tmp_path, "a", expected=3, state="one") as a:
            async with seat(tmp_path, "c", expected=3, state="one") as c:
                await until(lambda: len(a.mine) == len(c.mine) == 2)
            await owners([a, b], "aaaa")
        await owners([b], "....")
        async with seat(tmp_path, "d", state="one") as d:
            await owners([b, d], "dddd")
        assert b.mine == []


async def test_only_what_was_the_dead_one_s_moves(tmp_path: Path) -> None:
    async with seat(tmp_path, "a", expected=2) as a:
        async with member_process(tmp_path, "b", expected=2) as b:
            await until(lambda: len(a.mine) == 2)
            before = a.view
            await b.kill()
            await owners([a], "aaaa")
        kept = before.mine
        assert [a.view.epochs[p] for p in range(4)] == [1 if p in kept else 2 for p in range(4)]


async def test_when_the_oldest_dies_the_next_one_computes(tmp_path: Path) -> None:
    async with member_process(tmp_path, "old", expected=3) as old:
        assert await old.line() == "0 .,.,.,. 0,0,0,0 -"
        async with seat(tmp_path, "b", expected=3) as b, seat(tmp_path, "c", expected=3) as c:
            await until(lambda: b.view.epoch == c.view.epoch == 1)
            assert b.view.members[0] == "tcp://old"
            await old.kill()
            await until(lambda: len(b.mine) == len(c.mine) == 2)
            assert sorted(b.mine + c.mine) == [0, 1, 2, 3]


async def test_a_member_that_comes_back_under_its_name_starts_without_what_it_had(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, "b", expected=2) as b:
        async with member_process(tmp_path, "a", expected=2) as a:
            await until(lambda: len(b.mine) == 2)
            kept = b.view.mine
            await a.kill()
        async with seat(tmp_path, "a", expected=2) as again:
            await until(lambda: b.view.epoch == again.view.epoch >= 2)
            for partition in range(4):
                assert again.view.epochs[partition] == (1 if partition in kept else 2)
            assert kept <= b.view.mine


async def test_a_member_that_returns_while_it_is_awaited_finds_its_partitions(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, "b", expected=2, stay=LONG) as b:
        async with seat(tmp_path, "a", expected=2, stay=LONG) as a:
            await until(lambda: len(a.mine) == len(b.mine) == 2)
            had, kept = a.view.mine, b.view.mine
        await until(lambda: b.owners.count(".") == 2)
        async with seat(tmp_path, "c", stay=LONG) as c:
            await until(lambda: c.view.members == ("tcp://b", "tcp://c"))
            async with seat(tmp_path, "a", stay=LONG) as again:
                await until(lambda: again.view.mine == had)
                assert all(had <= view.mine | view.coming for view in again.views if view.epoch)
                assert b.view.mine == kept
                assert c.view.mine == frozenset()


async def test_partitions_of_a_member_that_does_not_return_in_time_go_to_others(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, "b", expected=2, stay=0.3) as b:
        async with seat(tmp_path, "a", expected=2, stay=0.3) as a:
            await until(lambda: len(a.mine) == len(b.mine) == 2)
            await a.membership.leave()
        await owners([b], "bbbb")
        assert any(view.owners.count("") == 2 for view in b.views)


async def test_a_drained_node_hands_over_everything_and_gets_nothing_until_that_ends(
    tmp_path: Path,
) -> None:
    async with (
        seat(tmp_path, "a", expected=2) as a,
        seat(tmp_path, "b", expected=2) as b,
        FolderCoordination(tmp_path).session("operator") as session,
    ):
        registry, app = Registry(session), AppId("east", "count")
        await until(lambda: len(a.mine) == len(b.mine) == 2)
        await registry.add_drained(app, "a")
        await until(lambda: b.view.coming == a.view.mine)
        await b.membership.take(b.view.coming)
        await until(lambda: a.view.to_hand_over == a.view.mine)
        await a.membership.hand_over(a.view.to_hand_over)
        await owners([a, b], "bbbb")
        async with seat(tmp_path, "c") as c:
            await until(lambda: len(c.view.coming) == 2)
            await c.membership.take(c.view.coming)
            await until(lambda: len(b.view.to_hand_over) == 2)  # of c's share
            await b.membership.hand_over(b.view.to_hand_over)
            await until(lambda: len(c.mine) == 2)
        await owners([a, b], "bbbb")
        await registry.remove_drained(app, "a")
        await until(lambda: len(a.view.coming) == 2)


async def test_members_read_only_what_has_changed(tmp_path: Path) -> None:
    async with (
        seat(tmp_path, "a", expected=3),
        seat(tmp_path, "b", expected=3) as b,
        seat(tmp_path, "c", expected=3) as c,
        FolderCoordination(tmp_path).session("reader") as session,
    ):
        await until(lambda: b.view.epoch == c.view.epoch == 1)
        reads: list[str] = []

        class Reading(FolderSession):
            async def get(self, path: str) -> Entry | None:
                reads.append(path.rpartition("/")[2])
                return await super().get(path)

        session.__class__ = Reading
        registry, app = Registry(session), AppId("east", "count")
        known = await registry.group(app)
        assert set(reads) == {"a", "b", "c", "assignment", "state"}
        reads.clear()
        assert await registry.group(app, known) == known
        oldest = known.members[0].value.name
        assert set(reads) == {oldest, "assignment", "state"}  # it may have been replaced


async def test_an_owner_that_joins_while_a_member_reads_is_not_taken_for_dead(
    tmp_path: Path,
) -> None:
    async with (
        seat(tmp_path, "a") as a,
        FolderCoordination(tmp_path).session("reader") as session,
        AsyncExitStack() as stack,
    ):
        await owners([a], "aaaa")
        joined: list[Seat] = []

        class Joining(FolderSession):
            async def children(self, path: str) -> list[str]:
                found = await super().children(path)
                if path.endswith("/members") and not joined:
                    joined.append(await stack.enter_async_context(seat(tmp_path, "b")))
                    await owes_two(a, *joined)
                    await a.membership.hand_over([2, 3])
                    await owners(joined, "aabb")
                return found

        session.__class__ = Joining
        group = await Registry(session).group(AppId("east", "count"))
        assert joined
        assert "" not in group.owners


async def test_when_all_have_gone_those_who_come_gather_again(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
    async with seat(tmp_path, "b", expected=2) as b:
        await until(lambda: b.view.members == ("tcp://b",))
        assert (b.view.epoch, b.owners) == (0, "....")
        async with seat(tmp_path, "c", expected=2) as c:
            await until(lambda: len(b.mine) == len(c.mine) == 2)
            assert b.view.epochs == (2, 2, 2, 2)


# --- leaving -------------------------------------------------------------------------------------


async def test_a_member_that_leaves_gives_up_everything_and_is_told_so_last(tmp_path: Path) -> None:
    async with seat(tmp_path, "a", expected=2) as a, seat(tmp_path, "b", expected=2) as b:
        await until(lambda: len(a.mine) == len(b.mine) == 2)
        await a.membership.leave()
        found = await b.membership.registry.assignment(AppId("east", "count"))
        assert found is not None
        assert {owner.member for owner in found.value.owners} == {"b"}  # when leave() has returned
        await owners([a, b], "bbbb")
        assert a.views[-1].mine == frozenset()
        await a.membership.leave()


async def test_the_last_who_leaves_leaves_nobody(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        await a.membership.leave()
        await owners([a], "....")
        await until(lambda: a.mine == [])  # its last view comes after it has left
        assert a.view.members == ()


async def test_leaving_before_anything_was_shared_out_ends_the_run(tmp_path: Path) -> None:
    async with FolderCoordination(tmp_path).session("a") as session:
        membership = Membership(
            session, cluster="east", app="count", member="a", address="tcp://a", partitions=4
        )
        await membership.leave()
        with trio.fail_after(10):
            await membership.run(lambda view: None)
        assert await membership.registry.members(AppId("east", "count")) == {}


async def test_a_process_that_leaves_is_replaced_before_it_ends(tmp_path: Path) -> None:
    async with member_process(tmp_path, "a") as a:
        assert await a.line() == "1 a,a,a,a 1,1,1,1 0,1,2,3"
        async with seat(tmp_path, "b") as b:
            await owners([b], "aaaa")
            a.signal(signal.SIGTERM)
            await owners([b], "bbbb")
            assert sorted((await a.rest())[-2:]) == ["2 b,b,b,b 2,2,2,2 -", "left"]


# --- what is refused, what is lost ---------------------------------------------------------------


async def test_another_number_of_partitions_is_refused_while_one_lives(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        with pytest.raises(CoordinationError) as caught:
            async with seat(tmp_path, "b", partitions=8):
                await trio.sleep_forever()
        assert "app 'east.count' runs with 4 partitions in 'a'" in str(caught.value)
        assert "would have 8 here; set s4.cluster.partitions = 4" in str(caught.value)
        await until(lambda: a.view.members == ("tcp://a",))
        assert a.owners == "aaaa"
        assert all(len(view.owners) == 4 for view in a.views)


async def test_another_number_of_partitions_is_taken_when_nobody_lives(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
    async with seat(tmp_path, "a", partitions=2) as again:
        await owners([again], "aa")
        assert again.view.epochs == (2, 2)
        assert all(len(view.owners) == len(view.epochs) == 2 for view in again.views)


async def test_an_assignment_for_another_number_of_partitions_is_not_told(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
    async with seat(tmp_path, "b", partitions=2, expected=2) as b:
        await until(lambda: b.view.members == ("tcp://b",))
        assert (b.view.owners, b.view.epochs) == (("", ""), (0, 0))
        async with seat(tmp_path, "c", partitions=2, expected=2) as c:
            await until(lambda: len(b.mine) == len(c.mine) == 1)
            assert b.view.epochs == (2, 2)


async def test_a_member_waits_at_its_start_for_the_session_of_a_killed_one_and_says_so(
    tmp_path: Path,
) -> None:
    ends = trio.Event()

    async def hold_name(task_status: trio.TaskStatus[None]) -> None:
        async with seat(tmp_path, "a") as killed:
            await owners([killed], "aaaa")
            task_status.started()
            await ends.wait()

    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(hold_name)
            async with seat(tmp_path, "a") as a:
                await until(lambda: told_to_wait(logs))
                assert a.mine == []
                ends.set()
                await owners([a], "aaaa")


async def test_a_member_that_leaves_while_it_waits_for_its_name_ends_at_once(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path, "a") as a, FolderCoordination(tmp_path).session("b") as session:
        await owners([a], "aaaa")
        second = Membership(
            session, cluster="east", app="count", member="a", address="tcp://b", partitions=4
        )
        with capture_logs() as logs, trio.fail_after(10):  # less than it would wait
            async with trio.open_nursery() as nursery:
                nursery.start_soon(second.run, lambda _: None)
                await until(lambda: told_to_wait(logs))
                await second.leave()
        assert a.owners == "aaaa"


@pytest.mark.slow
@pytest.mark.long
async def test_a_second_member_of_the_name_is_refused(tmp_path: Path) -> None:
    async with seat(tmp_path, "a", timeout=1.0) as a:
        await owners([a], "aaaa")
        with pytest.raises(NameTaken, match="already has a container 'a'"):
            async with seat(tmp_path, "a", timeout=1.0):
                await trio.sleep_forever()
        assert a.owners == "aaaa"


@pytest.mark.slow
async def test_while_nothing_can_be_written_the_last_view_holds(tmp_path: Path) -> None:
    async with seat(tmp_path, "a", timeout=1.0) as a, member_process(tmp_path, "b") as b:
        await owners([a], "aaaa")
        await b.line()
        other = sqlite3.connect(tmp_path / "tree.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # as a process that was stopped in the middle
        await b.kill()
        with trio.move_on_after(2.5):
            await a.membership.registry.session.lost.wait()
        assert (a.owners, len(a.view.members)) == ("aaaa", 2)
        with pytest.raises(CoordinationError, match="was locked by another process"):
            await a.membership.registry.session.create("/x", b"y")
        other.execute("ROLLBACK")
        other.close()
        await until(lambda: a.view.members == ("tcp://a",))


async def test_a_lost_session_ends_the_run(tmp_path: Path) -> None:
    async def lose() -> None:
        async with seat(tmp_path, "a") as a:
            await owners([a], "aaaa")
            (tmp_path / "tree.sqlite").unlink()
            await trio.sleep_forever()

    with trio.fail_after(10), pytest.raises(SessionLost, match="was deleted"):
        await lose()


@pytest.mark.slow
async def test_a_stopped_member_is_replaced_and_finds_itself_lost(tmp_path: Path) -> None:
    async with (
        seat(tmp_path, "a", expected=2) as a,
        member_process(tmp_path, "b", expected=2, timeout=2) as b,
    ):
        await until(lambda: len(a.mine) == 2)
        b.signal(signal.SIGSTOP)
        await owners([a], "aaaa")
        b.signal(signal.SIGCONT)
        assert (await b.rest())[-1] == "lost"
        assert a.owners == "aaaa"


# --- whatever happens ----------------------------------------------------------------------------


async def test_views_are_told_once_and_epochs_only_grow(tmp_path: Path) -> None:
    async with seat(tmp_path, "a") as a:
        await owners([a], "aaaa")
        registry = Registry(a.membership.registry.session)
        for number in range(5):
            await registry.add_stream_user(f"s{number}", "consumers", AppId("east", "count"))
            async with seat(tmp_path, "b") as b:
                await until(lambda: len(b.view.members) == 2)
        await until(lambda: a.view.members == ("tcp://a",))
        assert all(one != two for one, two in pairwise(a.views))
        epochs = [view.epoch for view in a.views]
        assert epochs == sorted(epochs)


# -- set-up ---------------------------------------------------------------------------------------


LONG = 600.0
"""Seconds that no test lives to see: what waits for them does not happen."""


def told_to_wait(logs: Sequence[MutableMapping[str, Any]]) -> bool:
    """Return True if a member has said that it waits for its name."""
    return any(log["event"].startswith("waits for a session with this cont") for log in logs)


class Seat:
    """A member in this process, and what it was told."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.views: list[View] = []

    @property
    def view(self) -> View:
        return self.membership.view

    @property
    def mine(self) -> list[int]:
        return sorted(self.view.mine)

    @property
    def owners(self) -> str:
        """The owners by partition in one text; a dot for nobody."""
        return "".join(owner.removeprefix("tcp://") or "." for owner in self.view.owners)


@asynccontextmanager
async def seat(
    folder: Path,
    name: str,
    *,
    partitions: int = 4,
    expected: int = 1,
    gather: float = LONG,
    containers: int = 0,
    app: str = "count",
    timeout: float = 10.0,
    stay: float = 0.0,
    state: str = "",
    zone: str = "",
    follows: bool = False,
) -> AsyncIterator[Seat]:
    """A member with a session of its own, which ends without leaving."""
    with plain_errors():
        async with (
            FolderCoordination(folder, session_timeout=timeout).session(name) as session,
            trio.open_nursery() as nursery,
        ):
            one = Seat(
                Membership(
                    session,
                    cluster="east",
                    app=app,
                    member=name,
                    address=f"tcp://{name}",
                    partitions=partitions,
                    expected=expected,
                    gather_timeout=gather,
                    containers=containers,
                    stay=stay,
                    state=state,
                    zone=zone,
                    follows=follows,
                    node=name,
                )
            )
            nursery.start_soon(one.membership.run, one.views.append)
            yield one
            nursery.cancel_scope.cancel()


def member_process(
    folder: Path, name: str, *, expected: int = 1, timeout: float = 60
) -> AbstractAsyncContextManager[Peer]:
    script = ROOT / "tests" / "membership_process.py"
    return python_process(script, folder, name, expected, str(timeout))


@asynccontextmanager
async def one_taken_of_two(folder: Path) -> AsyncIterator[tuple[Seat, Seat]]:
    """Two members are ready for a partition each of the first one; b takes over its own."""
    async with seat(folder, "a") as a:
        await owners([a], "aaaa")
        async with seat(folder, "b") as b:
            await until(lambda: b.view.coming == {2, 3}, "b knows its share")
            async with seat(folder, "c") as c:
                await until(lambda: (b.view.coming, c.view.coming) == ({2}, {3}), "c gets one")
                await b.membership.take([2])
                await c.membership.take([3])
                await until(lambda: a.view.to_hand_over == {2, 3})
                await a.membership.hand_over([2])
                yield a, b


async def owes_two(a: Seat, b: Seat) -> None:
    """Have the second be ready for the two of four partitions that are its share."""
    await until(lambda: b.view.coming == {2, 3}, "b knows its share")
    await b.membership.take([2, 3])
    await until(lambda: a.view.to_hand_over == {2, 3}, "a owes two")


async def owners(seats: list[Seat], expected: str) -> None:
    """Wait until all of them see these owners."""
    await until(lambda: all(s.owners == expected for s in seats), f"owners {expected}")
