"""The promises of a lane's flow: what is told to its producer, and when nothing is."""

from __future__ import annotations

from itertools import product

from s4node.net.ingress.flow import ARRIVALS, NEXT, Flow, Move, On, Presence

OPEN, GAP, TOLD, HELD = Flow
HERE, AWAY, ENDED = Presence
EVER = (OPEN, GAP, TOLD, HELD)

RULES = [
    # the next frame opens the lane, whatever was before, and so does a hello
    (EVER, (On.TAKEN, On.REOPENED), OPEN),
    # the producer goes back after a frame without credit, and after a rollback
    (EVER, (On.OVER, On.ROLLED_BACK), GAP),
    # for lack of room nothing is told before there is some
    (EVER, (On.NO_ROOM,), HELD),
    ((HELD,), (On.BEYOND, On.BACK, On.ANSWERED, On.LOST, On.ASKED), HELD),
    ((GAP, TOLD, HELD), (On.ROOM,), GAP),
    # a gap is told once, until the producer has gone back or may not know
    ((OPEN,), (On.BEYOND, On.BACK), GAP),
    ((GAP,), (On.BEYOND, On.BACK, On.LOST, On.ASKED), GAP),
    ((GAP,), (On.ANSWERED,), TOLD),
    ((TOLD,), (On.BEYOND, On.ANSWERED), TOLD),
    ((TOLD,), (On.BACK, On.LOST, On.ASKED), GAP),
    # a lane without a gap has nothing to repeat
    ((OPEN,), (On.ROOM, On.ANSWERED, On.LOST, On.ASKED), OPEN),
]

ARRIVING = [
    ((HERE, AWAY, ENDED), Move.HELLO, HERE),
    ((HERE, AWAY, ENDED), Move.END, ENDED),
    ((HERE, AWAY), Move.GONE, AWAY),
    ((ENDED,), Move.GONE, ENDED),
]


def test_whatever_happens_to_a_lane_has_one_rule_and_the_table_follows_it() -> None:
    for flow, event in product(Flow, On):
        (after,) = [after for flows, events, after in RULES if flow in flows and event in events]
        assert NEXT.get((flow, event), flow) is after, (flow, event)


def test_a_producer_that_has_ended_is_not_away_before_it_comes_again() -> None:
    for presence, move in product(Presence, Move):
        (after,) = [after for before, how, after in ARRIVING if presence in before and move is how]
        assert ARRIVALS.get((presence, move), presence) is after, (presence, move)
