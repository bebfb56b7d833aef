"""The HTTP server: real sockets, and peers that behave badly."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from certificates import Issuer
from harness import DEADLINE, until

from s4node import Config, Credentials
from s4node.errors import ConfigError
from s4node.http import reading
from s4node.http.messages import Answer, Request
from s4node.http.server import HttpServer

POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
LOCAL = "tcp://127.0.0.1:0"
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def alive(_: Request) -> Answer:
    return Answer(200, "alive\n")


async def secret(_: Request) -> Answer:
    return Answer(200, "secret\n")


async def lacking(_: Request) -> Answer:
    return Answer(503, "app 'shop' is starting: no key in Order('joe', 4)\n")


async def broken(_: Request) -> Answer:
    raise ZeroDivisionError


async def counting(_: Request) -> Answer:
    async def parts() -> AsyncGenerator[bytes, None]:
        for number in range(3):
            yield b"%d\n" % number

    return Answer(200, "", parts=parts())


ANSWERS = {
    "read": counting,
    "live": alive,
    "ready": lacking,
    "status": secret,
    "why": broken,
    "send": secret,
    "key": secret,
}


@asynccontextmanager
async def serving(address: str = LOCAL, **settings: str) -> AsyncIterator[HttpServer]:
    values = {"s4.http.address": address, **settings}
    server = HttpServer(Config.from_values(values), ANSWERS)
    await server.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        with trio.fail_after(2 * DEADLINE):
            yield server
        nursery.cancel_scope.cancel()


async def connected(server: HttpServer) -> trio.SocketStream:
    host, _, port = server.address.rpartition("/")[2].rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def rest_of(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    try:
        async for chunk in stream:
            data += chunk
    except trio.BrokenResourceError:
        pass
    return data


async def said(server: HttpServer, request: bytes) -> bytes:
    """The bytes that the server answers to a request, until it closes."""
    async with await connected(server) as stream:
        await stream.send_all(request)
        await stream.send_eof()
        return await rest_of(stream)


def get(path: str, *headers: str, host: str = "localhost") -> bytes:
    lines = (f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "", "")
    return "\r\n".join(lines).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_requests_of_one_connection_are_answered_in_turn() -> None:
    async with serving() as server:
        first, second, rest = (await said(server, GET * 2)).split(b"alive\n")
    assert first == second
    assert first.startswith(b"HTTP/1.1 200 ")
    for header in (
        b"Cache-Control: no-store",
        b"X-Content-Type-Options: nosniff",
        b"Content-Security-Policy: " + POLICY.encode(),
    ):
        assert header in first.split(b"\r\n")
    assert b"Access-Control" not in first
    assert rest == b""


async def test_an_answer_in_parts_has_an_end() -> None:
    async with serving() as server:
        async with await connected(server) as stream:
            await stream.send_all(get("/streams/numbers"))
            answer = await rest_of(stream)
        assert answer.endswith(b"2\r\n1\n\r\n2\r\n2\n\r\n0\r\n\r\n")


async def test_a_reader_gets_what_has_come_when_its_stream_ends_and_when_its_server_does() -> None:
    for ends in ("stream", "server"):
        reader = reading.Reader()
        reader.offer(b"a")
        reader.offer(b"b")
        reader.has_ended = ends == "stream"
        with trio.CancelScope() as scope:
            if ends == "server":
                scope.cancel()
            assert await reader.next_part() == b"ab"


async def test_a_query_is_ignored_and_an_unknown_path_names_those_that_there_are() -> None:
    async with serving() as server:
        assert (
            status_of(await said(server, b"GET /livez?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            == 200
        )
        answer = await said(server, b"GET /admin/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(answer) == 404
    assert b"/livez, /readyz, /metrics, /status, /why" in answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x00\x01\x02\x03 hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # the hello of TLS
        (b"GET /livez HTTP/1.1\r\n\r\n", 400),  # without a host
        (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000, 431),
        (b"GET /" + b"x" * 20_000, 431),
        (b"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"HEAD /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"DELETE /status HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /why HTTP/1.1\r\nHost: localhost\r\n\r\n", 500),
    ],
)
async def test_garbage_and_what_is_no_get_is_refused_and_the_next_is_answered(
    request_: bytes, status: int
) -> None:
    async with serving() as server:
        assert status_of(await said(server, request_)) == status
        assert status_of(await said(server, GET)) == 200


async def test_a_peer_that_closes_amid_its_request_ends_alone() -> None:
    async with serving() as server:
        for part in (b"", b"GET /liv", GET[:-2]):
            stream = await connected(server)
            await stream.send_all(part)
            await stream.aclose()
        assert status_of(await said(server, GET)) == 200


async def test_a_body_without_end_is_not_read() -> None:
    async with serving() as server, await connected(server) as stream:
        await stream.send_all(GET[:-2] + b"Transfer-Encoding: chunked\r\n\r\n")
        answer = await rest_of(stream)
    assert status_of(answer) == 200


POST = b"POST /streams/clicks HTTP/1.1\r\nHost: localhost\r\n"


async def test_bodies_without_end_are_ended_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as server:
        async with await connected(server) as endless:
            await endless.send_all(POST + b"Transfer-Encoding: chunked\r\n\r\n")
            sent = 0
            try:
                while sent < 10 << 30:
                    await endless.send_all(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                    sent += 65536
            except trio.BrokenResourceError:
                pass
            assert sent < 10 << 30  # it is read on for a second, so that the answer arrives
        large = await said(server, POST + b"Content-Length: 9000000\r\n\r\n" + b"x" * 9_000_000)
        assert status_of(large) == 413
        slow = [await connected(server) for _ in range(60)]  # together more than may be kept
        for stream in slow:
            await stream.send_all(POST + b"Content-Length: 8000000\r\n\r\n" + b"x" * (1 << 20))
        small = POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{}"
        answer = await said(server, small)
        assert answer.startswith(b"HTTP/1.1 100")
        assert b"HTTP/1.1 200" in answer
        assert sum(each.body_bytes for each in server._waiting.values()) <= 33 << 20
        for stream in slow:
            await trio.aclose_forcefully(stream)
        monkeypatch.setattr("s4node.http.server._BODY_SECONDS", 0.2)
        async with await connected(server) as stream:
            await stream.send_all(POST + b"Content-Length: 2\r\n\r\n{")
            assert status_of(await rest_of(stream)) == 408


async def test_silent_connections_make_room() -> None:
    async with serving() as server:
        silent = [await connected(server) for _ in range(200)]
        for stream in silent[::2]:
            await stream.send_all(b"GET /livez HTTP/1.1\r\n")
        assert status_of(await said(server, GET)) == 200
        assert await rest_of(silent[0]) == b""  # the oldest has ended
        for stream in silent:
            await stream.aclose()


async def test_connections_that_were_answered_and_do_not_close_make_room() -> None:
    async with serving() as server:
        lingering = [await connected(server) for _ in range(128)]
        for stream in lingering:
            await stream.send_all(GET)
            assert await stream.receive_some(1) == b"H"
        assert status_of(await said(server, GET)) == 200
        for stream in lingering:
            await stream.aclose()


async def test_a_head_that_comes_byte_by_byte_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("s4node.http.server._REQUEST_SECONDS", 0.2)
    async with serving() as server, await connected(server) as stream:

        async def drip() -> None:
            for byte in b"GET /livez HTTP/1.1\r\nX: " + b"y" * 8000:
                await stream.send_all(bytes([byte]))
                await trio.sleep(0.01)

        with pytest.raises(trio.BrokenResourceError):
            await drip()


async def test_an_answer_that_nobody_takes_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("s4node.http.server._ANSWER_SECONDS", 0.2)

    async def large(_: Request) -> Answer:
        return Answer(200, "x" * 50_000_000)

    server = HttpServer(Config.from_values({"s4.http.address": LOCAL}), {"page": large})
    await server.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        async with await connected(server) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: server._open == 1)
            await until(lambda: server._open == 0)
            assert len(await rest_of(stream)) < 50_000_000
        nursery.cancel_scope.cancel()


# -- pages of browsers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1:12080", "[::1]:80", "192.0.2.7", "here"],
)
async def test_a_node_is_asked_by_its_names_and_addresses(host: str) -> None:
    async with serving(**{"s4.listener.advertise": "here"}) as server:
        assert status_of(await said(server, get("/livez", host=host))) == 200


@pytest.mark.parametrize(
    "host",
    ["rebound.example", "localhost.rebound.example:80", "0.0.0.0:80", "x@localhost", "[::1", "a b"],
)
@pytest.mark.parametrize("address", [LOCAL, "tcp://0.0.0.0:0"])
async def test_a_name_that_was_bound_to_the_node_afterwards_gets_nothing(
    host: str, address: str
) -> None:
    async with serving(address, **{"s4.access": "open"}) as server:
        answer = await said(server, get("/status", f"Origin: http://{host}", host=host))
    assert status_of(answer) == 421
    assert b"secret" not in answer


@pytest.mark.parametrize(
    "header",
    [
        "Origin: http://evil.example",
        "Origin: null",
        "Origin: http://localhost:8080",  # another program of this machine
        "Origin: http://localhost@evil.example",
        "Origin: http://[",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
        "Sec-Fetch-Site: what",
    ],
)
async def test_a_page_of_another_origin_gets_nothing(header: str) -> None:
    async with serving() as server:
        answer = await said(server, get("/status", header))
    assert status_of(answer) == 403
    assert b"secret" not in answer
    assert b"Access-Control" not in answer


@pytest.mark.parametrize(
    "header", ["Origin: http://localhost", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none"]
)
async def test_the_page_of_the_node_itself_is_answered(header: str) -> None:
    async with serving() as server:
        assert status_of(await said(server, get("/status", header))) == 200


# -- who may ask ----------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://node.example:0"])
def test_an_address_for_others_needs_certificates(address: str) -> None:
    config = Config.from_values({"s4.http.address": address})
    with pytest.raises(ConfigError, match=r"other machines reach s4\.http\.address"):
        HttpServer(config, ANSWERS)
    config = Config.from_values({"s4.http.address": "tls+tcp://127.0.0.1:0"})
    with pytest.raises(ConfigError, match=r"no certificate is given; set s4\.tls\.certificate"):
        HttpServer(config, ANSWERS)


async def test_an_open_node_answers_anybody() -> None:
    async with serving("tcp://0.0.0.0:0", **{"s4.access": "open"}) as server:
        assert (
            status_of(await said(server, b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 200
        )


async def test_a_taken_address_is_named() -> None:
    async with serving() as server:
        other = HttpServer(Config.from_values({"s4.http.address": server.address}), ANSWERS)
        with pytest.raises(ConfigError, match=rf"{server.address}.*choose another"):
            await other.listen()


async def asked(
    server: HttpServer,
    files: Mapping[str, str] | None,
    issuer: Issuer,
    path: str = "/status",
    *headers: str,
    method: str = "GET",
) -> bytes:
    """The answer of the server to a peer with these certificates, or none."""
    context = ssl.create_default_context(cafile=str(issuer.folder / "authority.pem"))
    context.check_hostname = False
    if files is not None:
        context.load_cert_chain(files["s4.tls.certificate"], files["s4.tls.key"])
    stream = trio.SSLStream(await connected(server), context, https_compatible=True)
    async with stream:
        text = get(path, "Connection: close", *headers)
        await stream.send_all(text.replace(b"GET", method.encode(), 1))
        return await rest_of(stream)


async def test_without_a_certificate_a_peer_learns_only_whether_the_node_lives(
    tmp_path: Path,
) -> None:
    issuer = Issuer(tmp_path)
    node = issuer.node()
    del node["s4.listener.address"]
    async with serving("tls+tcp://127.0.0.1:0", **node) as server:
        reader = issuer.files("s4://default/reader/prometheus")
        assert (await asked(server, reader, issuer)).endswith(b"secret\n")
        assert status_of(await asked(server, None, issuer)) == 403
        stranger = issuer.files("s4://elsewhere/reader/stranger")
        answer = await asked(server, stranger, issuer)
        assert status_of(answer) == 403
        assert b"names nobody in cluster 'default'" in answer
        assert b"Order('joe', 4)" in await asked(server, reader, issuer, "/readyz")
        for files in (None, stranger):
            answer = await asked(server, files, issuer, "/readyz")
            assert status_of(answer) == 503
            assert b"shop" not in answer
        assert isinstance(Credentials.configured(Config.from_values(node)), Credentials)


@pytest.mark.parametrize(("name", "host"), [("localhost", "localhost"), ("node", "127.0.0.1")])
async def test_the_printed_url_has_a_name_of_the_certificate(
    tmp_path: Path, name: str, host: str
) -> None:
    async with serving("tls+tcp://127.0.0.1:0", **Issuer(tmp_path).node(name=name)) as server:
        assert server.url == server.address.replace("tls+tcp://127.0.0.1", f"https://{host}")


STATE, SEND = ("GET", "/state/app/Pe/key"), ("POST", "/streams/clicks")


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("producer", {SEND}),
        ("reader", {STATE}),
        ("operator", {SEND, STATE}),
        ("node", {SEND, STATE}),
    ],
)
async def test_a_certificate_may_do_over_http_what_its_role_may(
    tmp_path: Path, role: str, may: set[tuple[str, str]]
) -> None:
    issuer = Issuer(tmp_path)
    node = issuer.node()
    async with serving("tls+tcp://127.0.0.1:0", **node) as server:
        files = issuer.files(f"s4://default/{role}/somebody")
        for method, path in (STATE, SEND):
            answer = await asked(server, files, issuer, path, method=method)
            assert status_of(answer) == (200 if (method, path) in may else 403)


TOKENS = {role: role[0] * 32 for role in ("producer", "reader", "operator")}


def tokens_in(folder: Path, text: str = "", mode: int = 0o600) -> str:
    file = folder / "tokens"
    lines = [f"{role} some-{role} {token}" for role, token in TOKENS.items()]
    file.write_text(text or "\n".join(["# the shop's", "", *lines]))
    file.chmod(mode)
    return str(file)


async def test_a_token_may_do_what_its_role_may_and_a_removed_one_nothing(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    node = {**issuer.node(), "s4.http.tokens": tokens_in(tmp_path)}
    async with serving("tls+tcp://127.0.0.1:0", **node) as server:

        async def status(token: str, method: str, path: str) -> int:
            header = f"Authorization: Bearer {token}"
            return status_of(await asked(server, None, issuer, path, header, method=method))

        may = {"producer": {SEND}, "reader": {STATE}, "operator": {SEND, STATE}}
        for role, token in TOKENS.items():
            for place in (STATE, SEND):
                assert await status(token, *place) == (200 if place in may[role] else 403)
        assert await status("x" * 32, *STATE) == 401
        assert await status("r" * 31, *STATE) == 401
        answer = await asked(server, None, issuer, f"{STATE[1]}?token={TOKENS['reader']}")
        assert status_of(answer) == 401
        assert b"WWW-Authenticate: Bearer" in answer
        tokens_in(tmp_path, f"reader other {'o' * 32}")
        assert await status(TOKENS["reader"], *STATE) == 401
        assert await status("o" * 32, *STATE) == 200
        tokens_in(tmp_path, "what")
        assert await status("o" * 32, *STATE) == 401  # a file that cannot be read has no tokens
        tokens_in(tmp_path, f"reader other {'o' * 32}")
        (tmp_path / "tokens").chmod(0o640)
        assert await status("o" * 32, *STATE) == 401


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (f"reader somebody {'s' * 32}", 0o604, "others may use the file"),
        (f"node somebody {'s' * 32}", 0o600, "line 1 is no token of a producer, reader, operator"),
        (f"reader {'s' * 32}", 0o600, "line 1 is no token"),
        (f"reader a b {'s' * 32}", 0o600, "line 1 is no token"),
        (f"reader somebody {'s' * 31}", 0o600, "less than 32 characters"),
    ],
)
def test_a_file_of_tokens_that_is_not_as_it_should_be_is_refused_without_its_words(
    tmp_path: Path, text: str, mode: int, why: str
) -> None:
    node = {**Issuer(tmp_path).node(), "s4.http.address": "tls+tcp://127.0.0.1:0"}
    config = Config.from_values({**node, "s4.http.tokens": tokens_in(tmp_path, text, mode)})
    with pytest.raises(ConfigError, match=why) as refused:
        HttpServer(config, ANSWERS)
    assert "ssss" not in str(refused.value)


def test_tokens_need_tls(tmp_path: Path) -> None:
    values = {"s4.http.address": LOCAL, "s4.http.tokens": tokens_in(tmp_path)}
    with pytest.raises(ConfigError, match="has no TLS"):
        HttpServer(Config.from_values(values), ANSWERS)
    missing = {"s4.http.tokens": str(tmp_path / "missing"), **Issuer(tmp_path).node()}
    config = Config.from_values({**missing, "s4.http.address": "tls+tcp://127.0.0.1:0"})
    with pytest.raises(ConfigError, match="cannot be read"):
        HttpServer(config, ANSWERS)
