"""The peer at a dialled address: when it is taken for a stranger, and how often that is logged."""

from __future__ import annotations

from s4node.net.transport.dialled_peer import PeerAnswers


def test_a_peer_is_no_node_until_one_of_its_frames_can_be_read() -> None:
    answers = PeerAnswers()
    assert answers.stranger == ""
    answers.bad("no magic")
    assert "not with an s4node frame (no magic); the port may be another program's" in (
        answers.stranger
    )
    answers.disconnected()
    assert answers.stranger
    answers.good()
    assert answers.stranger == ""
    answers.bad("a header that does not decode")
    assert answers.stranger == ""
    answers.disconnected()
    answers.bad("no magic")  # another program has taken the port
    assert answers.stranger


def test_a_peer_that_comes_and_goes_without_a_good_answer_is_told_of_once() -> None:
    answers = PeerAnswers()
    told = [(answers.bad(f"rubbish {n}"), answers.disconnected()) for n in range(100)]
    assert told == [(True, True)] + [(False, False)] * 99


def test_after_a_good_answer_on_a_later_connection_it_is_told_again() -> None:
    answers = PeerAnswers()
    answers.good()
    assert answers.bad("one")
    answers.good()
    assert not answers.bad("two")  # the same connection
    assert answers.disconnected()
    assert not answers.bad("three")
    assert not answers.disconnected()
    answers.good()
    assert answers.bad("four")
    assert answers.disconnected()
