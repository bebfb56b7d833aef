"""Which nng protocol shall carry frames from many producers to one node, and answers back?

    python -m benchmarks.nng_protocols [loss|speed|all] [--json] [--seconds N] [--seed N]

Rules
- Loss comes first: ``loss`` counts what becomes of frames that ``send()`` took when the receiver
  is ten times too slow and is cut off again and again; once raw, once under a small go-back-N
  layer. It also tests whether two producers can be served side by side.
- ``speed`` comes second: throughput, CPU time per frame, delay at a fixed rate.
- Every end is a process of its own, on 127.0.0.1, and every candidate runs the same plan, code,
  buffer sizes and reconnect times. A frame refused with TryAgain is offered again, not dropped.
- Everything has a deadline, the closing of a socket too, and no process is left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import select
import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from queue import Empty
from typing import TYPE_CHECKING, Any

import pynng
from pynng._nng import lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FRAMES, FRAME_SIZE = 4000, 1024
OFFER = 0.0002  # seconds between two offered frames
HANDLE = 10 * OFFER  # seconds that the slow node takes for a frame
CUTS = 10
WINDOW = 64  # credit of the go-back-N layer, in frames
STALL = 0.25  # seconds without progress after which the layer goes back by itself
LOSS_LIMIT, PATIENCE = 14.0, 30.0  # seconds for one loss test, and for any test at all
BUFFER = 64  # nng's send and receive buffers, in frames
QUIET = 0.6  # seconds without a frame that end a test
SIDE_SECONDS = 1.5  # that the second producer is measured
SIDE_HANDLE = 0.002  # seconds the node takes for a frame of the flooding neighbour
BIG_ANSWER = 16384  # bytes in each answer that the deaf neighbour never reads
SIZES, RATE = (64, 32768), 1000  # bytes; frames/s in the delay test
HEADER = struct.Struct("<BQQ")  # producer, number, time sent

Row = dict[str, Any]
Peer = Any  # whatever the node needs to answer: a socket or a pipe


@dataclass(frozen=True)
class Candidate:
    """One protocol: how both ends are opened, and what its way back can do."""

    name: str
    dialer: Callable[..., Any]
    listener: Callable[..., Any]
    way_back: str = ""  # empty: none on the same port
    per_connection: bool = False  # the node accepts; each connection has a socket of its own
    by_pipe: bool = False  # answers are addressed by pipe
    lockstep: bool = False  # an answer must arrive before the next frame may leave


POLYAMOROUS = partial(pynng.Pair1, polyamorous=True)
CANDIDATES = (
    Candidate("pair0", pynng.Pair0, pynng.Pair0, "yes"),
    Candidate("pair0-per-connection", pynng.Pair0, pynng.Pair0, "yes", per_connection=True),
    Candidate("pair1-polyamorous", pynng.Pair1, POLYAMOROUS, "by pipe", by_pipe=True),
    Candidate("push/pull", pynng.Push0, pynng.Pull0),
    Candidate("req/rep", pynng.Req0, pynng.Rep0, "lockstep", lockstep=True),
    Candidate("bus0", pynng.Bus0, pynng.Bus0, "to everyone"),
    Candidate("pub/sub", pynng.Pub0, partial(pynng.Sub0, topics=b"")),
)


# --- The two ends
def open_socket(make: Callable[..., Any]) -> Any:
    buffers = {"send_buffer_size": BUFFER, "recv_buffer_size": BUFFER}
    return make(**buffers, reconnect_time_min=10, reconnect_time_max=50)


def close_socket(sock: Any) -> None:
    """Close in a daemon thread: nng's close can hang."""
    closing = threading.Thread(target=sock.close, daemon=True)
    closing.start()
    closing.join(2)


class Producer:
    """The dialing end. Comes back once connected, or without a connection after a while."""

    def __init__(self, candidate: Candidate, port: int) -> None:
        self.candidate = candidate
        self.waiting = False  # lockstep only: a request is out
        self.connections: list[Any] = []  # all that there ever were
        self.sock = open_socket(candidate.dialer)
        self.sock.add_post_pipe_connect_cb(self.connections.append)
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(self.sock.send_fd, select.POLLIN)
        if candidate.way_back:
            self._readable.register(self.sock.recv_fd, select.POLLIN)
        self.sock.dial(f"tcp://127.0.0.1:{port}", block=False)
        give_up = time.monotonic() + 2
        while not self.connections and time.monotonic() < give_up:
            time.sleep(0.01)

    def offer(self, data: bytes) -> bool:
        """True if nng took the frame, False if it must be offered again."""
        if self.waiting:
            return False
        try:
            self.sock.send(data, block=False)
        except pynng.TryAgain:
            return False
        self.waiting = self.candidate.lockstep
        return True

    def wait_to_offer(self, seconds: float = 0.05) -> None:
        if self.waiting:
            self.answers(seconds)
        else:
            self._writable.poll(seconds * 1000)

    def answers(self, seconds: float = 0.0) -> list[bytes]:
        """The messages that have arrived, after waiting at most so long for the first."""
        found: list[bytes] = []
        if seconds:
            self._readable.poll(seconds * 1000)
        if not self.candidate.way_back or (self.candidate.lockstep and not self.waiting):
            return found
        with contextlib.suppress(pynng.TryAgain):
            while not found or not self.candidate.lockstep:
                found.append(self.sock.recv(block=False))
                self.waiting = False
        return found


class Node:
    """The listening end: one port, and as many producers as the protocol allows."""

    def __init__(self, candidate: Candidate, port: int) -> None:
        self.candidate, self.port = candidate, port
        self.socks: dict[int, Any] = {}  # by the descriptor that tells of frames to read
        self.gone: list[Any] = []  # sockets whose only connection has ended
        self.last = time.monotonic()  # when a frame was read
        self._poller = select.poll()
        if candidate.per_connection:
            self._accept = socket.create_server(("127.0.0.1", port))
            self._poller.register(self._accept.fileno(), select.POLLIN)
        else:
            self._listen()

    def _open(self) -> Any:
        sock = open_socket(self.candidate.listener)
        self.socks[sock.recv_fd] = sock
        self._poller.register(sock.recv_fd, select.POLLIN)
        return sock

    def _listen(self) -> None:
        sock = self._open()
        for _ in range(200):  # the port may still be in use for a moment after a cut
            with contextlib.suppress(pynng.AddressInUse):
                sock.listen(f"tcp://127.0.0.1:{self.port}")
                return
            time.sleep(0.01)

    def _take_connection(self) -> None:
        """Accept one connection and give its descriptor to a Pair0 of its own."""
        connection, _ = self._accept.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock = self._open()
        sock.add_post_pipe_remove_cb(lambda _pipe: self.gone.append(sock))
        listener = sock.listen("socket://")
        if lib.nng_listener_set_int(listener.listener, b"socket:fd", connection.detach()):
            raise OSError("nng did not take the accepted descriptor")

    def _drop(self, sock: Any) -> None:
        for fd in [fd for fd, known in self.socks.items() if known is sock]:
            self._poller.unregister(fd)
            del self.socks[fd]
            close_socket(sock)

    def _ready(self) -> list[Any]:
        """The sockets with frames to read."""
        events = self._poller.poll(20)
        ready = [self.socks[fd] for fd, _ in events if fd in self.socks]
        if len(ready) < len(events):
            self._take_connection()
        while self.gone and not ready:  # an ended connection is read to its end first
            self._drop(self.gone.pop())
        return ready

    def _drain(self, sock: Any, most: int) -> Iterator[tuple[Peer, bytes]]:
        with contextlib.suppress(pynng.TryAgain, pynng.Closed):
            if self.candidate.by_pipe:
                for _ in range(most):
                    message = sock.recv_msg(block=False)
                    yield message.pipe, message.bytes
            else:
                for _ in range(most):
                    yield sock, sock.recv(block=False)

    def frames(self, link: Link, most: int = 1 << 30) -> Iterator[tuple[Peer, bytes]]:
        """All frames, at most so many of a socket in turn, until the producers are done."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() - self.last < QUIET or not link.finish.is_set():
            for sock in self._ready():
                yield from self._drain(sock, most)
                self.last = time.monotonic()
            if time.monotonic() > give_up:
                break

    def answer(self, peer: Peer, data: bytes) -> bool:
        try:
            if self.candidate.by_pipe:
                peer.socket.send_msg(pynng.Message(data, peer), block=False)
            else:
                peer.send(data, block=False)
        except (pynng.NNGException, AttributeError):  # full or gone; or its pipe is unknown
            return False
        return True

    def cut(self, whole: bool) -> None:
        """Close the receiving socket and open it anew, or only cut its connections."""
        for sock in list(self.socks.values()):
            if whole or self.candidate.per_connection:
                self._drop(sock)
            else:
                for pipe in sock.pipes:
                    with contextlib.suppress(pynng.NNGException):
                        pipe.close()
        if whole and not self.candidate.per_connection:
            self._listen()

    def close(self) -> None:
        for sock in list(self.socks.values()):
            self._drop(sock)


# --- Processes
@dataclass
class Link:
    """The values that a child shares with the parent."""

    results: Any
    finish: Any  # set when all producers are done
    leave: Any  # set when nobody needs the sockets any more

    def result(self, row: Row) -> None:
        """Give the result; keep the sockets open until the others have theirs."""
        self.results.put(row)
        self.leave.wait(PATIENCE)


def run_child(link: Link, job: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        job(link, *arguments)
    except Exception as error:
        link.results.put({"error": repr(error)})


def run(row: Row, candidate: Candidate, *jobs: tuple[Any, ...]) -> Row:
    """Run each ``(job, *arguments)``, the node's first, in its own process; add their results."""
    context = multiprocessing.get_context("spawn")
    link = Link(context.Queue(), context.Event(), context.Event())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    children = []
    for job, *arguments in jobs:
        given = (link, job, (candidate, port, *arguments))
        children.append(context.Process(target=run_child, args=given, daemon=True))
    try:
        for child in children:
            child.start()
        for left in range(len(jobs) - 1, -1, -1):
            if left == 0:
                link.finish.set()
            row = row | link.results.get(timeout=PATIENCE)
            if "error" in row:
                break
    except Empty:
        row = row | {"error": "no result in time"}
    finally:
        link.leave.set()
        for child in children:
            child.join(4)
            child.kill()
            child.join()
    return row


def frame(producer: int, number: int, size: int) -> bytes:
    return HEADER.pack(producer, number, time.monotonic_ns()).ljust(size, b"\0")


def pace(due: float) -> None:
    if (left := due - time.monotonic()) > 0:
        time.sleep(left)


# --- Loss
def plan_of_cuts(seed: int) -> list[tuple[float, bool]]:
    """When to cut, and whether to close the whole socket.

    Half of the cuts fall into the time that an unhindered sender needs for all frames, the other
    half into the time that the node needs for them.
    """
    rng = random.Random(seed)
    early = [rng.uniform(0, FRAMES * OFFER) for _ in range(CUTS // 2)]
    late = [rng.uniform(FRAMES * OFFER, FRAMES * HANDLE) for _ in range(CUTS - CUTS // 2)]
    return [(when, rng.random() < 0.5) for when in sorted(early + late)]


def slow_node(link: Link, candidate: Candidate, port: int, layered: bool, seed: int) -> None:
    """Handle frames ten times too slowly, cut by plan; layered: only the next expected one."""
    node, plan = Node(candidate, port), plan_of_cuts(seed)
    handled: list[int] = []
    cuts, start = 0, 0.0
    for peer, data in node.frames(link):
        start = start or time.monotonic()
        number = HEADER.unpack_from(data)[1]
        if not layered or number == len(handled):
            time.sleep(HANDLE)
            handled.append(number)
        if cuts < len(plan) and time.monotonic() - start > plan[cuts][0]:
            node.cut(plan[cuts][1])  # this frame is handled, but not answered any more
            cuts += 1
        elif layered or candidate.lockstep:
            node.answer(peer, HEADER.pack(0, len(handled), 0))
    link.result({"handled": handled, "cuts": cuts})
    node.close()


def raw_producer(link: Link, candidate: Candidate, port: int) -> None:
    """Offer every frame until nng takes it, and believe nng."""
    producer = Producer(candidate, port)
    accepted = refused = 0
    start = time.monotonic()
    for number in range(FRAMES):
        pace(start + number * OFFER)
        taken = producer.offer(frame(0, number, FRAME_SIZE))
        refused += not taken
        while not taken and time.monotonic() - start < LOSS_LIMIT:
            producer.wait_to_offer()
            taken = producer.offer(frame(0, number, FRAME_SIZE))
        if not taken:
            break
        accepted += 1
    counts = {"offered": number + 1, "refused": refused, "accepted": accepted}
    link.result(counts | {"held": 0, "resent": 0, "stalls": 0})
    close_socket(producer.sock)


def layered_producer(link: Link, candidate: Candidate, port: int) -> None:
    """Go-back-N: keep frames until 'processed up to n' comes; go back to n after a reconnect."""
    producer = Producer(candidate, port)
    accepted = base = following = refused = stalls = resent = 0
    refused_last, connections = -1, len(producer.connections)
    start = progress = time.monotonic()
    while base < FRAMES and (now := time.monotonic()) - start < LOSS_LIMIT:
        offered = min(FRAMES, int((now - start) / OFFER) + 1)
        for data in producer.answers(0 if following < accepted else 0.0005):
            if (processed := HEADER.unpack_from(data)[1]) > base:
                base, progress = processed, now
        following = max(following, base)
        stalled = now - progress > STALL and following > base
        if stalled or connections < len(producer.connections):
            connections, progress = len(producer.connections), now
            stalls, resent, following = stalls + stalled, resent + following - base, base
        if offered > accepted and accepted - base < WINDOW:
            accepted += 1
        elif offered > accepted != refused_last:  # a frame counts once, however often refused
            refused, refused_last = refused + 1, accepted
        if following < accepted:
            if producer.offer(frame(0, following, FRAME_SIZE)):
                following += 1
            else:
                time.sleep(0.0005)
    counts = {"offered": offered, "refused": refused, "accepted": accepted}
    link.result(counts | {"held": accepted - base, "resent": resent, "stalls": stalls})
    close_socket(producer.sock)


def loss_row(candidate: Candidate, layered: bool, seed: int) -> Row:
    row: Row = {"candidate": candidate.name, "layer": "go-back-N" if layered else "raw"}
    if layered and not candidate.way_back:
        return row | {"error": "no way back on the same port"}
    sender = layered_producer if layered else raw_producer
    row = run(row, candidate, (slow_node, layered, seed), (sender,))
    handled = row.pop("handled", [])
    if "error" not in row:
        sure = range(row["accepted"] - row["held"])  # what the sender believes to have arrived
        row |= {"arrived": len(set(handled)), "lost": len(set(sure) - set(handled))}
        row["duplicate"] = len(handled) - len(set(handled))
        row["disorder"] = sum(later < earlier for earlier, later in pairwise(handled))
    return row


# --- Two producers side by side
def side_node(link: Link, candidate: Candidate, port: int, neighbour: str) -> None:
    """Answer both producers; the deaf one gets big answers, the flooding one takes time."""
    node, taken, refused = Node(candidate, port), 0, 0
    delays: list[int] = []
    for peer, data in node.frames(link, most=1):
        if link.finish.is_set():
            break
        producer, _, sent = HEADER.unpack_from(data)
        if producer == 1:
            delays.append(time.monotonic_ns() - sent)
        elif neighbour == "flooding":
            time.sleep(SIDE_HANDLE)
        size = BIG_ANSWER if producer == 0 and neighbour == "deaf" else 0
        if candidate.way_back:
            ok = node.answer(peer, data[: HEADER.size].ljust(size, b"\0"))
            refused, taken = refused + (not ok), taken + (ok and producer == 0)
    link.result({"one way": delays, "answers refused": refused, "taken": taken})
    node.close()


def side_probe(link: Link, candidate: Candidate, port: int) -> None:
    """Producer 1, which comes second: a frame at a time, each waits for its answer if any."""
    time.sleep(0.5)
    producer = Producer(candidate, port)
    trips, sent, start = [], 0, time.monotonic()
    while (now := time.monotonic()) - start < SIDE_SECONDS:
        open_trip = producer.offer(frame(1, sent, 64)) and bool(candidate.way_back)
        while open_trip and time.monotonic() - now < 0.25:
            for data in producer.answers(0.01):
                if HEADER.unpack_from(data)[:2] == (1, sent):
                    trips.append(int((time.monotonic() - now) * 1e9))
                    open_trip = False
        sent += 1
        time.sleep(0.005)
    link.result({"probes": sent, "round trip": trips})
    close_socket(producer.sock)


def side_row(candidate: Candidate, neighbour: str) -> Row:
    measured = "round trip" if candidate.way_back else "one way"
    row: Row = {"candidate": candidate.name, "way back": candidate.way_back or "none"}
    row |= {"neighbour": neighbour, "measured": measured}
    jobs: list[tuple[Any, ...]] = [(side_node, neighbour), (side_probe,)]
    if neighbour != "none":  # deaf: sends steadily (lockstep cannot be deaf); flooding: all it can
        jobs.append((fast_producer, 64, SIDE_SECONDS + 3, RATE if neighbour == "deaf" else 0))
    got = run({}, candidate, *jobs)
    if "error" in got:
        return row | got
    if neighbour == "deaf" and candidate.way_back and not candidate.lockstep:
        row |= {"answers refused": got["answers refused"]}
        row |= {"answers lost": got["taken"] - got["read"]}  # nng took them; they never arrived
    row |= {"probes": got["probes"], "served": len(got[measured])}
    return row | milliseconds(got[measured])


def milliseconds(delays: list[int]) -> Row:
    """p50, p99 and the greatest of delays in nanoseconds."""
    if len(delays) < 2:
        return {}
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    figures = {"p50 ms": cuts[49], "p99 ms": cuts[98], "max ms": max(delays)}
    return {name: round(value / 1e6, 3) for name, value in figures.items()}


# --- Speed
def fast_node(link: Link, candidate: Candidate, port: int, timed: bool) -> None:
    """Drain as fast as possible; lockstep protocols get the least answer."""
    node, frames, start, cpu = Node(candidate, port), 0, 0.0, 0.0
    delays: list[int] = []
    for peer, data in node.frames(link):
        if not frames:
            start, cpu = time.monotonic(), time.process_time()
        frames += 1
        if timed:
            delays.append(time.monotonic_ns() - HEADER.unpack_from(data)[2])
        if candidate.lockstep:
            node.answer(peer, b"\0")  # pynng cannot read an empty message
    used = {"node us": (time.process_time() - cpu) * 1e6}
    link.result({"frames": frames, "took": node.last - start, "delays": delays} | used)
    node.close()


def fast_producer(
    link: Link, candidate: Candidate, port: int, size: int, seconds: float, rate: int
) -> None:
    """Send as fast as nng takes it, or at a rate with the time in each frame; read answers last."""
    producer = Producer(candidate, port)
    data, sent, cpu, start = frame(0, 0, size), 0, time.process_time(), time.monotonic()
    while time.monotonic() - start < seconds:
        if rate:
            pace(start + sent / rate)
            data = frame(0, sent, size)
        if producer.offer(data):
            sent += 1
        else:
            producer.wait_to_offer()
    used, read = (time.process_time() - cpu) * 1e6, 0
    while rate and not candidate.lockstep and (late := producer.answers(0.3)):
        read += sum(data[0] == 0 for data in late)
    link.result({"sent": sent, "sender us": used, "read": read})
    close_socket(producer.sock)


def speed_row(candidate: Candidate, size: int, rate: int, seconds: float) -> Row:
    row: Row = {"candidate": candidate.name, "bytes": size, "rate": rate or "full"}
    row = run(row, candidate, (fast_node, bool(rate)), (fast_producer, size, seconds, rate))
    if "error" in row:
        return row
    sent, frames, _ = max(row.pop("sent"), 1), max(row.pop("frames"), 1), row.pop("read")
    row |= {"frames/s": round(frames / row.pop("took")), "arrived %": round(100 * frames / sent, 1)}
    row["sender us"] = round(row["sender us"] / sent, 1)
    row["node us"] = round(row["node us"] / frames, 1)
    return row | milliseconds(row.pop("delays"))


def add_ratios(rows: list[Row]) -> None:
    """Compare with pair0: frames/s at full speed, p50 at the fixed rate."""
    base = {(row["bytes"], row["rate"]): row for row in rows if row["candidate"] == "pair0"}
    for row in rows:
        measure = "frames/s" if row["rate"] == "full" else "p50 ms"
        with contextlib.suppress(KeyError):
            row["to pair0"] = round(row[measure] / base[row["bytes"], row["rate"]][measure], 2)


# --- Output
def print_table(title: str, rows: list[Row]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "error"))
    lines = [columns, *([str(row.get(column, "")) for column in columns] for row in rows)]
    notes = ["", *(f"not possible: {row['error']}" if "error" in row else "" for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for line, note in zip(lines, notes, strict=True):
        print(
            *(cell.ljust(width) for cell, width in zip(line, widths, strict=True)), note, sep="  "
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare nng protocols: loss first, then speed.")
    parser.add_argument("test", nargs="?", choices=("loss", "speed", "all"), default="all")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser.add_argument("--seconds", type=float, default=2.0, help="per speed measurement")
    parser.add_argument("--seed", type=int, default=4, help="of the plan of cuts")
    options = parser.parse_args()
    tables: dict[str, list[Row]] = {}
    if options.test != "speed":
        tables["loss"] = [
            loss_row(candidate, layered, options.seed)
            for candidate in CANDIDATES
            for layered in (False, True)
        ]
        kinds = ("none", "deaf", "flooding")
        tables["two producers"] = [side_row(c, kind) for c in CANDIDATES for kind in kinds]
    if options.test != "loss":
        loads = (*((size, 0) for size in SIZES), (SIZES[0], RATE))
        tables["speed"] = [
            speed_row(c, *load, options.seconds) for load in loads for c in CANDIDATES
        ]
        add_ratios(tables["speed"])
    if options.json:
        print(json.dumps([{"table": name, **row} for name, rows in tables.items() for row in rows]))
    else:
        for name, rows in tables.items():
            print_table(name, rows)


if __name__ == "__main__":
    main()
