"""python client.py HOST PORT STREAM < EVENTS: one JSON object a line; prints the verdicts."""

import json
import secrets
import socket
import struct
import sys
import time
import zlib

HANDSHAKE = b"\x00SP\x00\x00\x10\x00\x00"
HELLO, DATA, VERDICT, END_OF_STREAM, DRAIN = 0, 1, 2, 5, 6
EXPECTED, JSON, ANSWER_NOW, FRAME_EVENTS, PATIENCE = 2, 1, 1, 500, 30.0
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
NUMBERS = dict(zip(range(0xCA, 0xD4), "fdBHIQbhiq"))
SIZES = dict(zip((0xC4, 0xC5, 0xC6, *range(0xD9, 0xE0)), "BHIBHIHIHI"))


def pack(value):
    """Whole numbers >= 0, text and lists as msgpack."""
    if isinstance(value, int):
        return bytes([value]) if value < 128 else struct.pack(">BQ", 0xCF, value)
    if isinstance(value, str):
        return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
    return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(pack, value))


def unpack(data, at):
    """The msgpack value at an offset, and the offset behind it."""
    code, at = data[at], at + 1
    if code < 0x80 or code >= 0xE0:
        return code - 256 * (code >= 0xE0), at
    if code in CONSTANTS:
        return CONSTANTS[code], at
    size = code & (31 if code >= 0xA0 else 15)
    if code in NUMBERS or code in SIZES:
        form = ">" + (NUMBERS.get(code) or SIZES[code])
        size, at = struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if code in NUMBERS:
        return size, at
    if 0xA0 <= code < 0xDC:
        raw = data[at : at + size]
        return (raw if 0xC4 <= code <= 0xC6 else raw.decode()), at + size
    items, is_map = [], code < 0x90 or code >= 0xDE
    for _ in range(size * 2 if is_map else size):
        item, at = unpack(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2])) if is_map else items), at


class Connection:
    def __init__(self, host, port):
        self.socket = socket.create_connection((host, port), timeout=PATIENCE)
        self.file = self.socket.makefile("rb")
        self.socket.sendall(HANDSHAKE)
        if self.read(8) != HANDSHAKE:
            sys.exit("no nng Pair0 socket listens there")

    def read(self, size):
        data = self.file.read(size)
        if len(data) < size:
            raise ConnectionError("the node closed the connection")
        return data

    def send(self, header, body=b""):
        head = pack(header)
        envelope = b"S4\x01\x00" + struct.pack(">II", len(head), len(body)) + head + body
        self.socket.sendall(struct.pack(">Q", len(envelope)) + envelope)

    def receive(self):
        """The headers of the next envelope."""
        data, at, headers = self.read(struct.unpack(">Q", self.read(8))[0]), 4, []
        if data[:3] != b"S4\x01":
            sys.exit(f"not an envelope of version 1: {data[:4]}")
        while at < len(data):
            head, body = struct.unpack_from(">II", data, at)
            headers.append(unpack(data, at + 8)[0])
            at += 8 + head + body
        return headers


class Producer:
    """One lane of one stream: everything below ``upto`` is settled, ``next`` leaves next."""

    def __init__(self, stream, lines):
        self.stream, self.lines, self.told = stream, lines, set()
        self.name, self.incarnation = f"minimal-{secrets.token_hex(5)}", secrets.token_hex(4)
        self.partitions = self.partition = self.next = self.limit = self.upto = 0
        self.end, self.heard = len(lines), time.monotonic()

    def run(self, connection):
        opened = draining = False
        known = [[self.partition, self.upto]] if self.partitions else []
        connection.send([HELLO, self.name, self.incarnation, self.stream, [], "", 0, known])
        while not opened or self.upto < self.end:
            while opened and not draining and self.next < min(self.limit, self.end):
                connection.send(*self.data())
            for header in connection.receive():
                if header[0] == HELLO:
                    self.take_hello(*header[4:10])
                    opened = True
                elif header[0] == VERDICT:
                    self.take_verdict(*header[3:5])
                elif header[0] == DRAIN:
                    draining = True
                    connection.send([DRAIN, "stopped sending"])
        connection.send([END_OF_STREAM, self.stream, self.name])

    def take_hello(self, types, routing, partitions, positions, error, headers):
        if error or len(types) != 1 or self.partitions not in (0, partitions):
            sys.exit(error or "several event types, or other partitions than before")
        self.partitions, self.fingerprint = partitions, types[0][1]
        self.partition = zlib.crc32(self.name.encode()) % partitions  # one lane keeps the order
        _, self.next, self.limit, safe = positions[self.partition][:4]
        self.upto, self.heard = max(self.upto, safe), time.monotonic()
        if not self.upto <= self.next <= self.end:
            sys.exit("another process sends under this producer id")
        self.room = headers["max_frame_bytes"] - 4096  # for the body, beside its header

    def data(self):
        """The next frame: as many events as credit and the node's limits allow."""
        first = self.next
        lines = self.lines[first : min(self.limit, self.end, first + FRAME_EVENTS)]
        while len(body := b"[" + b",".join(lines) + b"]") > self.room:
            if len(lines) == 1:
                sys.exit(f"event {first} is too long for a frame")
            lines = lines[: len(lines) // 2]
        self.next += len(lines)
        flags = ANSWER_NOW if self.next == min(self.limit, self.end) else 0
        sections = [[self.fingerprint, len(lines), len(body)]]
        return [
            DATA,
            self.stream,
            self.partition,
            self.name,
            first,
            len(lines),
            sections,
            "",
            JSON,
            flags,
        ], body

    def take_verdict(self, rulings, error):
        if error:
            sys.exit(f"the node took a frame for bad: {error}")
        for partition, outcome, upto, limit, expected, refused, _, shed in (r[:8] for r in rulings):
            if partition != self.partition:
                continue
            for first, count, reason in refused + shed:
                for n in sorted(set(range(first, first + count)) - self.told):  # one may come twice
                    self.told.add(n)
                    print(json.dumps({"refused": n, "reason": reason}), flush=True)
            self.upto, self.limit = max(self.upto, upto), limit
            if outcome == EXPECTED:
                self.next = expected
            print(json.dumps({"upto": upto, "limit": limit, "outcome": outcome}), flush=True)


def main(host, port, stream):
    lines = [json.dumps(json.loads(line)).encode() for line in sys.stdin if line.strip()]
    producer = Producer(stream, lines)
    while True:
        try:
            producer.run(Connection(host, int(port)))
            break
        except OSError as error:
            print(json.dumps({"lost": str(error)}), flush=True)
            if time.monotonic() > producer.heard + 2 * PATIENCE:
                sys.exit("no node answers there")
            time.sleep(0.2)
    refused = len(producer.told)
    print(json.dumps({"processed": producer.end - refused, "refused": refused}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
