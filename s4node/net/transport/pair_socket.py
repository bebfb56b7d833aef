"""The dialling end of a connection: an nng Pair0 socket, awaited through trio.

Rules
- It dials ``tcp://``. A node's end is an ``SpSocket``, so every peer has its own back
  pressure and its own end.
- Sending and receiving never block and allocate no nng aio: await readiness once, then go on until
  nothing is left.
- pynng's exceptions stay in this module. nng's threads only ever set a flag in the trio thread.
- Two of nng's threads may report the start and the end of one connection, in either order. A start
  that comes after the end is ignored.
- An address that connects and never answers is dialled less and less often, like one that does not
  connect; nng alone would reset its delay at each connection.
- nng's close can take long, so it runs in a thread with a deadline.
"""

from __future__ import annotations

import re
from contextlib import suppress

import pynng
import trio

from s4node import threads
from s4node.errors import ConfigError, S4Error, StageBroken
from s4node.forks import connections_closed_in_forks
from s4node.net.certificates.credentials import SCHEME
from s4node.net.transport import fork_guard
from s4node.net.transport.sp_socket import PipeOwner

_AGAIN = int(pynng.lib.NNG_EAGAIN)
_NOWAIT = int(pynng.lib.NNG_FLAG_NONBLOCK)
_RECEIVE = int(pynng.lib.NNG_FLAG_ALLOC) | _NOWAIT
_CLOSE_SECONDS = 2.0
_BUFFERED_ENVELOPES = 8
REDIAL_MS = 50
REDIAL_MOST_MS = 1000
"""nng waits a random time, up to a bound that doubles from the first to the second."""


_NO_HOST = re.compile(r"[\s,;/\\]")  # such as several addresses in one text


def host_and_port(address: str) -> tuple[str, int]:
    """The host and port of ``tcp://host:port`` or ``tls+tcp://host:port``."""
    text = address if isinstance(address, str) else ""  # a program's may be anything
    scheme, _, rest = text.partition("://")
    host, _, port = rest.rpartition(":")
    good = scheme in ("tcp", SCHEME) and host and not _NO_HOST.search(host)
    if not good or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(
            f"{address!r} is not an address; write tcp://host:port, or tls+tcp:// with TLS"
        )
    return host.strip("[]"), int(port)


def need_trio() -> None:
    """Raise S4Error if the caller runs in another event loop than trio's, such as asyncio's."""
    if not trio.lowlevel.in_trio_run():
        raise S4Error(
            "a Client needs trio: run it with trio.run. In an asyncio loop, use SyncClient in a "
            "thread (asyncio.to_thread)"
        )


class PairSocket:
    """A connection to one peer. Make it with :meth:`dialing`.

    ``owner`` learns in the trio thread whenever the peer comes or goes.
    """

    def __init__(self, max_bytes: int, owner: PipeOwner) -> None:
        fork_guard.use()
        self._socket = pynng.Pair0(
            recv_buffer_size=_BUFFERED_ENVELOPES,
            send_buffer_size=_BUFFERED_ENVELOPES,
            recv_max_size=max_bytes,
            reconnect_time_min=REDIAL_MS,
            reconnect_time_max=REDIAL_MOST_MS,
        )
        self._owner = owner
        self._token = trio.lowlevel.current_trio_token()
        self._ends: dict[int, tuple[str, str]] = {}  # the addresses of pipes
        self._socket.add_post_pipe_connect_cb(self._came)
        self._socket.add_post_pipe_remove_cb(self._went)
        self._nng = self._socket.socket
        self._data = pynng.ffi.new("char **")
        self._size = pynng.ffi.new("size_t *")
        self._recv_fd: int = self._socket.recv_fd
        self._send_fd: int = self._socket.send_fd
        self._closed = False
        self._dialer: pynng.Dialer | None = None
        self._ended = 0  # the latest pipe that has gone
        self._unanswered = 0  # connections in a row that brought nothing good
        self.connected = False

    @classmethod
    def dialing(cls, address: str, max_bytes: int, owner: PipeOwner) -> PairSocket:
        host_and_port(address)
        self = cls(max_bytes, owner)
        try:
            self._dialer = self._socket.dial(address, block=False)
        except pynng.NNGException as error:
            raise ConfigError(f"{address!r} cannot be dialled: {error}") from error
        return self

    def receive_nowait(self) -> bytes | None:
        code = pynng.lib.nng_recv(self._nng, self._data, self._size, _RECEIVE)
        if code == _AGAIN:
            return None
        if code:
            raise StageBroken(f"receiving failed: nng error {code}")
        size = self._size[0]
        received: bytes = pynng.ffi.unpack(self._data[0], size) if size else b""
        pynng.lib.nng_free(self._data[0], size)
        return received

    def send_nowait(self, data: bytes) -> bool:
        code = pynng.lib.nng_send(self._nng, data, len(data), _NOWAIT)
        if code == _AGAIN:
            return False
        if code:
            raise StageBroken(f"sending failed: nng error {code}")
        return True

    def answered(self) -> None:
        """Note a good frame: if this connection is lost, dial again at once."""
        if self._unanswered > 1:
            self._redial_after(REDIAL_MS)
        self._unanswered = 0

    async def run(self) -> None:
        """Wait until cancelled: nng's threads connect and send."""
        await trio.sleep_forever()

    async def wait_readable(self) -> None:
        await trio.lowlevel.wait_readable(self._recv_fd)

    async def wait_writable(self) -> None:
        await trio.lowlevel.wait_readable(self._send_fd)  # nng marks both fds as readable

    async def close(self) -> None:
        """Close, shielded and with a deadline; tasks that wait here get ClosedResourceError."""
        if self._closed:
            return
        self._closed = True
        trio.lowlevel.notify_closing(self._recv_fd)
        trio.lowlevel.notify_closing(self._send_fd)
        with trio.move_on_after(_CLOSE_SECONDS, shield=True):
            await threads.run_sync(self._socket.close, abandon_on_cancel=True)

    def _came(self, pipe: pynng.Pipe) -> None:
        """Note a connection. In nng's thread, as the next ones."""
        with suppress(pynng.NNGException):  # the peer may have reset it by now
            ends = str(pipe.local_address), str(pipe.remote_address)
            self._ends[pipe.id] = ends
            connections_closed_in_forks.add(ends)
        self._hop(pipe.id, True)

    def _went(self, pipe: pynng.Pipe) -> None:
        connections_closed_in_forks.discard(self._ends.pop(pipe.id, ("", "")))
        self._hop(pipe.id, False)

    def _hop(self, pipe: int, connected: bool) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._changed, pipe, connected)

    def _changed(self, pipe: int, connected: bool) -> None:
        if self._closed or (connected and pipe == self._ended):
            return
        if not connected:
            self._ended = pipe
        elif self._unanswered:
            self._redial_after(min(REDIAL_MS << self._unanswered, REDIAL_MOST_MS))
        self._unanswered += connected
        self.connected = connected
        self._owner.set_connected(connected)

    def _redial_after(self, most_ms: int) -> None:
        if self._dialer is not None:
            self._dialer.reconnect_time_min = most_ms
