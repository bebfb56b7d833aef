"""The line adapter: each line of text that arrives over TCP becomes an event.

``printf 'joe\\nann\\n' | nc -N 127.0.0.1 15000`` sends two events with the attribute "name".

Parameters (``s4.app.<name>``): ``port`` (15000), ``host`` (127.0.0.1), ``attribute`` ("name") and
``longest``, the longest line in bytes (65536). A longer line, or one that is not UTF-8, is
answered with an error on its connection; the other lines become events.
"""

from __future__ import annotations

from contextlib import suppress

import structlog
import trio

from s4node import AdapterApp, GenericEvent, S4Error

log = structlog.get_logger("apps.lines")

_TOO_LONG = b"error: a line is too long; it was dropped\n"


class LineAdapter(AdapterApp):
    """Listens for lines and sends them to the stream ``s4.adapter.output.stream``."""

    remote_stream_types = (GenericEvent,)

    def on_init(self) -> None:
        """Read the parameters; events are routed by their line."""
        self.host = self.parameters.get("host", "127.0.0.1")
        self.port = int(self.parameters.get("port", "15000"))
        self.attribute = self.parameters.get("attribute", "name")
        self.longest = int(self.parameters.get("longest", "65536"))
        self.remote_stream_key_finder = self.attribute
        super().on_init()

    async def on_start(self) -> None:
        """Open the port and start to take lines."""
        try:
            listeners = await trio.open_tcp_listeners(self.port, host=self.host)
        except OSError as error:
            raise S4Error(
                f"the line adapter cannot listen on {self.host}:{self.port}: "
                f"{error.strerror or error}; choose another s4.app.port"
            ) from error
        self.port = listeners[0].socket.getsockname()[1]
        log.info("taking lines", host=self.host, port=self.port)
        self.start_soon(self._serve, listeners)

    async def _serve(self, listeners: list[trio.SocketListener]) -> None:
        await trio.serve_listeners(self._take, listeners)

    async def _take(self, peer: trio.SocketStream) -> None:
        rest = b""
        skips = False  # the next bytes belong to a line that was too long
        try:
            async for chunk in peer:
                *lines, rest = (rest + chunk).split(b"\n")
                if skips and lines:
                    del lines[0]
                    skips = False
                await self._send(peer, lines)
                if skips:
                    rest = b""
                elif self._is_too_long(rest):
                    rest, skips = b"", True
                    await self._complain(peer, [_TOO_LONG])
            await self._send(peer, [rest] if rest else [])
        except trio.BrokenResourceError:
            pass  # the peer is gone; its complete lines have been sent
        finally:
            await trio.aclose_forcefully(peer)

    def _is_too_long(self, line: bytes) -> bool:
        return len(line.removesuffix(b"\r")) > self.longest  # it may be of the line's end

    async def _send(self, peer: trio.SocketStream, lines: list[bytes]) -> None:
        events, errors = [], []
        for line in lines:
            if self._is_too_long(line):
                errors.append(_TOO_LONG)
                continue
            try:
                text = line.rstrip(b"\r").decode()
            except UnicodeDecodeError:
                errors.append(b"error: a line is not UTF-8; it was dropped\n")
                continue
            if text:
                events.append(GenericEvent(**{self.attribute: text}))
        await self._complain(peer, errors)
        if events:
            await self.remote_stream.send_many(events)

    @staticmethod
    async def _complain(peer: trio.SocketStream, errors: list[bytes]) -> None:
        if errors:
            with suppress(trio.BrokenResourceError):  # the sender is gone; its other lines are sent
                await peer.send_all(b"".join(errors))
