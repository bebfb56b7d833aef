"""The promises of the wire format: these bytes for ever, and no bytes that do harm.

The files in ``tests/golden/frames`` hold an envelope of one frame of each kind, in hex. They
change only together with the protocol's version: ``python tests/net/wire/test_frame.py`` writes
those that do not exist yet and never overwrites one.
"""

from __future__ import annotations

import struct
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st

from s4node.errors import LocalFrameError, RemoteFrameError
from s4node.events.type_declaration import TypeDecl
from s4node.net.wire import frame as wire
from s4node.net.wire.frame import BadFrame, Frame, check_sections, encode_frame, read_envelope

GOLDEN = ROOT / "tests" / "golden" / "frames"
LIMIT = 1_048_576

CLICK = TypeDecl("Click", 5031015932648304557, (("user", "str", True), ("millis", "int", False)))
HEADERS = {"created": 1700000000123, "trace": "00-4bf92f3577b34da6-01"}

SAMPLES: dict[str, tuple[wire.Header, bytes]] = {
    "hello": (
        wire.Hello(
            "spark-1", "a1b2c3", "clicks", (CLICK,), "crc32:user", 2,
            (wire.Position(0, 40, 140, 30), wire.Position(1, 0)), "no such stream", HEADERS,
        ),
        b"",
    ),
    "data": (
        wire.Data(
            "clicks", 1, "spark-1", 40, 3,
            (wire.Section(CLICK.fingerprint, 2, 11), wire.Section(7, 1, 3)),
            "crc32:user", wire.MSGPACK, wire.ANSWER_NOW, b"\x00\x01\x00", 1700000000123, HEADERS,
        ),
        b"\x92\x92\xa3joe\x01\x91\xa1a\x91\x91\x05",
    ),
    "verdict": (
        wire.Verdict(
            "clicks", "spark-1",
            (
                wire.Ruling(0, wire.REFUSED, 40, 140, 43, ((41, 1, "no key"), (42, 2, "late"))),
                wire.Ruling(1, wire.NOT_OWNER, 0, 0, 0, (), "tcp://10.0.0.2:12000"),
                wire.Ruling(2, wire.SHED, 9, 109, 12, (), "", ((6, 3, "full"),)),
            ),
            "no such stream", HEADERS,
        ),
        b"",
    ),
    "watermark": (
        wire.Watermark("clicks", "spark-1", 1700000000123, ((1, 40), (3, 7)), HEADERS), b""
    ),
    "idle": (wire.Idle("clicks", "spark-1", wire.ANSWER_NOW, HEADERS), b""),
    "end of stream": (wire.EndOfStream("clicks", "spark-1", HEADERS), b""),
    "drain": (wire.Drain("node-1 is stopping", HEADERS), b""),
    "query": (wire.Query(3, "trim", {"stream": "clicks", "offset": 40}, HEADERS), b""),
    "answer": (wire.Answer(3, {"partitions": [1, 2]}, "no such stream", HEADERS), b""),
}  # fmt: skip
KINDS = list(SAMPLES)


def golden_path(kind: str) -> Path:
    return GOLDEN / f"{kind.replace(' ', '_')}.hex"


def golden(kind: str) -> bytes:
    return bytes.fromhex(golden_path(kind).read_text())


def write_missing_golden_files() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for kind, (header, body) in SAMPLES.items():
        text = wire.envelope([encode_frame(header, body)]).hex()
        lines = [text[at : at + 64] for at in range(0, len(text), 64)]
        if not golden_path(kind).exists():
            golden_path(kind).write_text("\n".join(lines) + "\n")


def raw_envelope(head: bytes, body: bytes = b"") -> bytes:
    return b"S4\x01\x00" + struct.pack(">II", len(head), len(body)) + head + body


def frame_of(data: bytes) -> Frame:
    """The only frame of an envelope, which is a good one."""
    (frame,) = read_envelope(data, LIMIT)
    assert isinstance(frame, Frame)
    return frame


# --- the bytes -----------------------------------------------------------------------------------


def test_there_is_a_golden_file_for_each_kind_of_frame() -> None:
    assert sorted(SAMPLES) == sorted(header.kind for header in get_args(wire.Header))
    assert {path.name for path in GOLDEN.iterdir()} == {golden_path(kind).name for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_gives_exactly_the_golden_bytes(kind: str) -> None:
    header, body = SAMPLES[kind]
    assert wire.envelope([encode_frame(header, body)]) == golden(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_the_golden_bytes_gives_exactly_the_header(kind: str) -> None:
    header, body = SAMPLES[kind]
    frame = frame_of(golden(kind))
    assert frame.header == header
    assert type(frame.header) is type(header)
    assert frame.body == body


def test_an_idle_frame_is_these_bytes() -> None:
    assert wire.envelope([encode_frame(wire.Idle("clicks", "p", wire.ANSWER_NOW))]) == (
        b"S4\x01\x00"
        b"\x00\x00\x00\x0d"  # the header's length
        b"\x00\x00\x00\x00"  # the body's length
        b"\x95\x04\xa6clicks\xa1p\x01\x80"
    )


def test_the_numbers_of_outcomes_and_encodings_are_part_of_the_protocol() -> None:
    assert (wire.MSGPACK, wire.JSON) == (0, 1)
    assert wire.ANSWER_NOW == 1
    assert (wire.ADMITTED, wire.SHED, wire.EXPECTED, wire.NOT_OWNER, wire.REFUSED) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert [wire.OUTCOMES[outcome] for outcome in range(5)] == [
        "admitted",
        "shed",
        "expected",
        "not owner",
        "refused",
    ]


# --- other versions ------------------------------------------------------------------------------


def wire_fields(kind: str) -> list[Any]:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(SAMPLES[kind][0]))


@pytest.mark.parametrize("kind", KINDS)
def test_fields_that_a_newer_version_appends_are_ignored(kind: str) -> None:
    header, body = SAMPLES[kind]
    newer = [*wire_fields(kind), "new", {"and": ["more", None]}, 5]
    frame = frame_of(raw_envelope(msgspec.msgpack.encode(newer), body))
    assert frame.header == header


@pytest.mark.parametrize("kind", KINDS)
def test_fields_that_an_older_version_lacks_get_their_defaults(kind: str) -> None:
    header, _ = SAMPLES[kind]
    fields = msgspec.structs.fields(type(header))
    required = sum(field.required for field in fields)
    everything = wire_fields(kind)
    for known in range(required, len(fields)):
        frame = frame_of(raw_envelope(msgspec.msgpack.encode(everything[: 1 + known])))
        values = [getattr(header, field.name) for field in fields[:known]]
        assert frame.header == type(header)(*values)
        assert frame.header != header


def test_parts_of_a_header_grow_at_their_end_too() -> None:
    old_hello = [
        0,
        "p",
        "i",
        "clicks",
        [["E", 5, [["a", "int", True]], "new"]],
        "",
        1,
        [[0, 40], [1, 3, 4, 5, 6, "new"]],
    ]
    assert frame_of(raw_envelope(msgspec.msgpack.encode(old_hello))).header == wire.Hello(
        "p",
        "i",
        "clicks",
        (TypeDecl("E", 5, (("a", "int", True),)),),
        "",
        1,
        (wire.Position(0, 40, 0, 0), wire.Position(1, 3, 4, 5, 6)),
    )
    old_verdict = [
        2,
        "clicks",
        "p",
        [[0, 0, 1, 2, 3], [1, 4, 1, 2, 3, [[1, 1, "x"]], "", [], "new"]],
    ]
    assert frame_of(raw_envelope(msgspec.msgpack.encode(old_verdict))).header == wire.Verdict(
        "clicks", "p", (wire.Ruling(0, 0, 1, 2, 3), wire.Ruling(1, 4, 1, 2, 3, ((1, 1, "x"),)))
    )
    data = [1, "clicks", 0, "p", 0, 1, [[5, 1, 2, "new"]]]
    assert frame_of(raw_envelope(msgspec.msgpack.encode(data))).header == wire.Data(
        "clicks", 0, "p", 0, 1, (wire.Section(5, 1, 2),)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_header_without_its_required_fields_is_a_bad_frame(kind: str) -> None:
    fields = msgspec.structs.fields(type(SAMPLES[kind][0]))
    for known in range(sum(field.required for field in fields)):
        head = msgspec.msgpack.encode(wire_fields(kind)[: 1 + known])
        (bad,) = read_envelope(raw_envelope(head), LIMIT)
        assert isinstance(bad, BadFrame)
        assert bad.reason.startswith("the header at offset 12 does not decode: ")


# --- what is no envelope -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "an envelope starts with b'S4', not b''; is this an s4node peer?"),
        (b"S", "an envelope starts with b'S4', not b'S'; is this an s4node peer?"),
        (
            b"GET / HTTP/1.1\r\n",
            "an envelope starts with b'S4', not b'GET '; is this an s4node peer?",
        ),
        (b"s4\x01\x00", "an envelope starts with b'S4', not b's4\\x01\\x00'; is this an s4node"),
        (b"S4", "truncated: 2 bytes are not an envelope"),
        (b"S4\x01", "truncated: 3 bytes are not an envelope"),
        (b"S4\x00\x00", "protocol version 0 is unknown; this side speaks version 1"),
        (
            b"S4\x02\x00" + b"\x00" * 8,
            "protocol version 2 is unknown; this side speaks version 1",
        ),
        (b"S4\x01\x00\x00", "truncated: 1 bytes at offset 4 are not a frame"),
        (b"S4\x01\x00" + b"\x00" * 7, "truncated: 7 bytes at offset 4 are not a frame"),
        (
            b"S4\x01\x00\x00\x00\x00\x05\x00\x00\x00\x00\x91\x06",
            "truncated: a frame of 13 bytes at offset 4 has only 10",
        ),
        (
            b"S4\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff",
            "truncated: a frame of 8589934598 bytes at offset 4 has only 8",
        ),
    ],
)
def test_an_envelope_that_cannot_be_read_says_why(data: bytes, message: str) -> None:
    with pytest.raises(RemoteFrameError) as caught:
        list(read_envelope(data, LIMIT))
    assert str(caught.value).startswith(message)


def test_an_envelope_may_be_empty() -> None:
    assert list(read_envelope(b"S4\x01\x00", LIMIT)) == []


def several() -> tuple[bytes, list[Any], list[int]]:
    """An envelope with a frame of each kind, its headers, and the offsets where frames end."""
    frames = [encode_frame(*SAMPLES[kind]) for kind in KINDS]
    ends = [4]
    for encoded in frames:
        ends.append(ends[-1] + len(encoded))
    return wire.envelope(frames), [SAMPLES[kind][0] for kind in KINDS], ends


def test_several_frames_are_read_in_order() -> None:
    data, headers, _ = several()
    frames = list(read_envelope(data, LIMIT))
    assert [frame.header for frame in frames] == headers  # type: ignore[union-attr]
    assert [bytes(frame.body) for frame in frames] == [  # type: ignore[union-attr]
        SAMPLES[kind][1] for kind in KINDS
    ]


def test_an_envelope_cut_at_any_byte_gives_the_frames_before_the_cut_and_then_an_error() -> None:
    data, headers, ends = several()
    for cut in range(len(data)):
        read: list[Any] = []
        with nullcontext() if cut in ends else pytest.raises(RemoteFrameError):
            read.extend(read_envelope(data[:cut], LIMIT))
        assert [frame.header for frame in read] == headers[: sum(end <= cut for end in ends[1:])]


# --- bad frames beside good ones -----------------------------------------------------------------

GOOD = encode_frame(wire.Idle("clicks", "p"))


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"", "truncated"),
        (b"\xc0", "Expected `array`, got `None`"),
        (b"\x80", "Expected `array`, got `object`"),
        (b"\x90", "Expected `array` of at least length 1, got 0"),
        (b"\x91\x63", "Invalid value 99"),
        (b"\x91\xff", "Invalid value -1"),
        (b"\x93\x04\x05\xa1p", "Expected `str`, got `int` - at `$[1]`"),
        (b"\x93\x04\xa1a\xa1\xff", "UTF-8"),
        (b"\x94\x04\xa1a\xa1p\xc2", "Expected `int`, got `bool` - at `$[3]`"),
        (b"\x93\x04\xa1a\xa1p\x00", "trailing characters"),
        (b"\x93\x06\xa1a\x81\x80\x01", "Expected `str`, got `object`"),
        (b"\x93\x06\xa1a\x81\xa1k\x81\x80\x01", "Expected `int | str`, got `object`"),
        (b"\x93\x06\xa1a\x81\xa1k" + b"\x91" * 100_000 + b"\x01", "got `array`"),
        (b"\x93\x06\xa1a\x81\xa1k\xd6\x05\x00", "truncated"),
        (b"\xdd\xff\xff\xff\xff\x06", "truncated"),
    ],
)
def test_a_bad_header_is_reported_and_the_frames_beside_it_are_read(
    head: bytes, words: str
) -> None:
    bad = struct.pack(">II", len(head), 3) + head + b"xyz"
    before, found, behind = read_envelope(wire.envelope([GOOD, bad, GOOD]), LIMIT)
    assert before == behind == Frame(wire.Idle("clicks", "p"), memoryview(b""), len(GOOD) - 8)
    assert isinstance(found, BadFrame)
    assert found.size == len(head)
    assert found.reason.startswith(f"the header at offset {4 + len(GOOD) + 8} does not decode: ")
    assert words.lower() in found.reason.lower()


def test_a_frame_over_the_limit_is_reported_with_its_header_and_the_others_are_read() -> None:
    data = wire.Data("clicks", 0, "p", 0, 1, (wire.Section(5, 1, 1000),))
    large = encode_frame(data, b"\x00" * 1000)
    envelope = wire.envelope([GOOD, large, GOOD])
    _, bad, behind = read_envelope(envelope, len(large) - 1)
    over = f"a frame of {len(large)} bytes is over the limit of {len(large) - 1}"
    assert bad == BadFrame(over, data)
    assert behind == Frame(wire.Idle("clicks", "p"), memoryview(b""), len(GOOD) - 8)
    _, fits, _ = read_envelope(envelope, len(large))
    assert fits == Frame(data, memoryview(b"\x00" * 1000), len(large) - 1008)


def test_a_header_over_the_limit_is_not_even_read() -> None:
    large = encode_frame(wire.Drain("x" * 1000))
    over = f"a frame of {len(large)} bytes is over the limit of 1000"
    assert list(read_envelope(wire.envelope([large]), 1000)) == [BadFrame(over)]


def test_a_body_is_a_view_of_the_bytes_that_were_given() -> None:
    data = golden("data")
    assert frame_of(data).body.obj is data


# --- what we cannot build ------------------------------------------------------------------------


def deep() -> Any:
    value: Any = None
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "header",
    [
        wire.Drain("x", {"a": object()}),
        wire.Drain("x", {"a": 2**64}),
        wire.Drain("\ud800"),
        wire.Drain("x", {"a": deep()}),
        wire.Data("clicks", 0, "p", 2**64, 1, ()),
    ],
)
def test_a_header_that_cannot_be_encoded_is_our_own_error(header: wire.Header) -> None:
    with pytest.raises(LocalFrameError) as caught:
        encode_frame(header)
    assert str(caught.value).startswith(f"{header.kind} frame cannot be encoded: ")


# --- any bytes at all ----------------------------------------------------------------------------


def read_any(data: bytes, limit: int = LIMIT) -> list[Frame | BadFrame]:
    """The values before the end or the error; no other error is raised, no more bytes are read."""
    read: list[Frame | BadFrame] = []
    with suppress(RemoteFrameError):
        read.extend(read_envelope(data, limit))
    assert 8 * len(read) <= max(0, len(data) - 4)
    bodies = 0
    for frame in read:
        if isinstance(frame, Frame):
            assert isinstance(frame.header, get_args(wire.Header))
            bodies += len(frame.body)
            if isinstance(frame.header, wire.Data):
                assert isinstance(check_sections(frame.header, frame.body), str)
        else:
            assert isinstance(frame, BadFrame)
            assert frame.reason
    assert 8 * len(read) + bodies <= max(0, len(data) - 4)
    return read


@given(st.binary(max_size=200), st.sampled_from([b"", b"S4\x01\x00"]), st.integers(0, 300))
def test_arbitrary_bytes_only_give_frames_bad_frames_or_a_remote_frame_error(
    data: bytes, start: bytes, limit: int
) -> None:
    read_any(start + data, limit)


@given(
    st.lists(st.binary(max_size=30) | st.sampled_from([b"\x93\x06\xa1a", b"\x98\x01"]), max_size=4),
    st.binary(max_size=10),
)
def test_arbitrary_headers_with_right_lengths_spoil_only_themselves(
    heads: list[bytes], body: bytes
) -> None:
    frames = [struct.pack(">II", len(head), len(body)) + head + body for head in heads]
    mixed = [part for encoded in frames for part in (encoded, GOOD)]
    read = read_any(wire.envelope(mixed))
    assert len(read) == 2 * len(heads)
    good = Frame(wire.Idle("clicks", "p"), memoryview(b""), len(GOOD) - 8)
    assert all(frame == good for frame in read[1::2])


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.integers(0, 7), st.lists(JUNK, max_size=11), st.binary(max_size=5))
def test_arbitrary_well_formed_headers_are_frames_or_bad_frames(
    kind: int, fields: list[Any], body: bytes
) -> None:
    try:
        head = msgspec.msgpack.encode([kind, *fields])
    except OverflowError:
        return
    assert len(read_any(raw_envelope(head, body))) == 1


@st.composite
def mutated(draw: Any) -> bytes:
    """Valid envelopes with some bytes changed, cut out, doubled or put in."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    data = bytearray(wire.envelope([encode_frame(*SAMPLES[kind]) for kind in kinds]))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        what = draw(st.sampled_from(["flip", "set", "cut", "insert", "double"]))
        if what == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "set" and data:
            data[at] = draw(st.sampled_from([0x00, 0x7F, 0x80, 0x91, 0xC1, 0xDD, 0xFF]))
        elif what == "cut":
            del data[at : at + draw(st.integers(1, 20))]
        elif what == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 30))]
    return bytes(data)


@given(mutated())
def test_damaged_envelopes_only_give_frames_bad_frames_or_a_remote_frame_error(
    data: bytes,
) -> None:
    read_any(data)


# --- sections ------------------------------------------------------------------------------------


def data_of(
    *sections: tuple[int, int], first: int = 0, count: int = 3, order: bytes = b"", part: int = 0
) -> wire.Data:
    """A data header whose sections hold these counts and sizes."""
    return wire.Data(
        "clicks",
        part,
        "p",
        first,
        count,
        tuple(wire.Section(5, c, s) for c, s in sections),
        order=order,
    )


@pytest.mark.parametrize(
    ("data", "body", "problem"),
    [
        (data_of((3, 10)), 10, ""),
        (data_of((3, 3)), 3, ""),
        (data_of((1, 4), (2, 6), order=b"\x01\x00\x01"), 10, ""),
        (data_of((0, 1), (3, 6), order=b"\x01\x01\x01"), 7, ""),
        (data_of((3, 10), first=2**62 - 4), 10, ""),
        (data_of((3, 10), first=2**62 - 3), 10,
         "it has 3 events from 4611686018427387901 on, numbers end at 4611686018427387903"),
        (data_of((3, 2)), 2, "a section of 2 bytes announces 3 events"),
        (data_of((2**31, 10), count=2**31), 10,
         "a section of 10 bytes announces 2147483648 events"),
        (data_of((3, 9)), 10, "the sections do not add up to the body's 10 bytes"),
        (data_of((3, 11)), 10, "the sections do not add up to the body's 10 bytes"),
        (data_of((1, 4), (2, 5), order=b"\x00\x01\x01"), 10,
         "the sections do not add up to the body's 10 bytes"),
        (data_of((2, 10)), 10, "the sections do not add up to 3 events"),
        (data_of((1, 4), (1, 6), order=b"\x00\x01\x01"), 10,
         "the sections do not add up to 3 events"),
        (data_of((1, 4), (2, 6)), 10, "order has 0 bytes for 3 events"),
        (data_of((1, 4), (2, 6), order=b"\x00\x01\x01\x01"), 10, "order has 4 bytes for 3 events"),
        (data_of((1, 4), (2, 6), order=b"\x00\x00\x01"), 10,
         "order and section 0 disagree on its number of events"),
        (data_of((1, 4), (2, 6), order=b"\x00\x01\x02"), 10,
         "order and section 1 disagree on its number of events"),
        (data_of(*[(1, 1)] * 256, count=256, order=bytes(range(256))), 256, ""),
    ],
)  # fmt: skip
def test_sections_add_up_or_it_is_said_why_not(data: wire.Data, body: int, problem: str) -> None:
    assert check_sections(data, memoryview(bytes(body))) == problem


NUMBERS = st.integers(-2, 4) | st.sampled_from([-(2**63), 2**62, 2**63, 2**64 - 1])


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.binary(max_size=4),
    st.integers(0, 8),
)
def test_sections_said_to_add_up_can_be_taken_apart_without_a_look_at_the_numbers(
    sections: list[tuple[int, int]], first: int, count: int, part: int, order: bytes, size: int
) -> None:
    data = data_of(*sections, first=first, count=count, order=order, part=part)
    (read,) = read_any(wire.envelope([encode_frame(data, bytes(size))]))
    if isinstance(read, Frame) and not check_sections(data, read.body):
        assert 0 <= first < 2**62
        assert part >= 0
        assert sum(s.size for s in data.sections) == size
        assert 0 < count == sum(s.count for s in data.sections) <= size
        if len(sections) > 1:
            assert [order.count(index) for index in range(len(sections))] == [
                s.count for s in data.sections
            ]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=1, max_size=5), st.randoms()
)
def test_honest_sections_add_up(sections: list[tuple[int, int]], random: Any) -> None:
    shares = [(count, count + spare) for count, spare in sections]
    order = [index for index, (count, _) in enumerate(shares) for _ in range(count)]
    random.shuffle(order)
    data = data_of(*shares, count=len(order), order=bytes(order) if len(shares) > 1 else b"")
    assert check_sections(data, memoryview(bytes(sum(size for _, size in shares)))) == ""


if __name__ == "__main__":
    write_missing_golden_files()
