"""The certificate and key with which this process proves who it is, and whom it trusts.

Rules
- TLS 1.3 only, and both ends show a certificate that the one authority has signed. No other
  authority counts, not even those of the system.
- Files that have changed are read again before the next handshake. If they cannot be used, the
  former ones stay in use, and the log says so once.
- The list of revoked certificates is a text: a serial number in each line, in hexadecimal digits as
  ``openssl x509 -serial`` and ``s4 certs`` print it. ``#`` begins a comment.
- No session is resumed, so each connection is checked anew.
- No message has anything of a key but the name of its file.
"""

from __future__ import annotations

import socket as stdlib
import ssl
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from s4node import clocks
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError
from s4node.logger import get_logger
from s4node.net.certificates.identity import Holder, unfit_to_serve

log = get_logger("s4node.net")

SCHEME = "tls+tcp"
"""The scheme of addresses at which peers speak TLS."""


OPTIONS = tuple(
    setting.name
    for setting in (
        settings.TLS_CERTIFICATE,
        settings.TLS_KEY,
        settings.TLS_AUTHORITY,
        settings.TLS_REVOKED,
    )
)
"""The names of the settings, which are also those of Spark's options."""


class _Files(NamedTuple):
    certificate: str
    key: str
    authority: str
    revoked: str


class _Loaded(NamedTuple):
    holder: Holder
    dialling: ssl.SSLContext
    serving: ssl.SSLContext
    monitored: ssl.SSLContext
    revoked: frozenset[int]
    hosts: frozenset[str]


class Credentials:
    """The names of files in PEM: a ``certificate``, its ``key``, and the ``authority`` that has
    signed it and those of all peers.

    ``revoked`` is a list of serial numbers that are no longer trusted. Raises ConfigError if the
    files cannot be used.
    """

    def __init__(self, certificate: str, key: str, authority: str, revoked: str = "") -> None:
        self._files = files = _Files(certificate, key, authority, revoked)
        self._stamps = self._look()
        self._loaded = _load(files)
        left = self.holder.expires - clocks.wall()
        if left <= 0:
            raise ConfigError(
                f"the certificate in {files.certificate} has expired, so no peer takes it; get a "
                f"new one (s4 certs makes those of a development cluster)"
            )

    @classmethod
    def configured(cls, config: Config) -> Credentials | None:
        """The credentials that ``config`` names, or None if it names none."""
        files = (
            config[settings.TLS_CERTIFICATE],
            config[settings.TLS_KEY],
            config[settings.TLS_AUTHORITY],
            config[settings.TLS_REVOKED],
        )
        return _of(files) if any(files) else None

    @classmethod
    def in_options(cls, options: Mapping[str, str]) -> Credentials | None:
        """The credentials in options with the names of the settings, or None without any."""
        given = {name.lower(): text for name, text in options.items()}
        values = {name: given[name] for name in OPTIONS if name in given}
        return cls.configured(Config.from_values(values))

    def __reduce__(self) -> tuple[Any, ...]:
        return _of, (tuple(self._files),)  # the names of the files, never what they hold

    @property
    def holder(self) -> Holder:
        return self._loaded.holder

    @property
    def hosts(self) -> frozenset[str]:
        """The names of hosts in the certificate."""
        return self._loaded.hosts

    def serving(self, raw: stdlib.socket) -> ssl.SSLSocket:
        """Our end of an accepted connection, before its handshake."""
        self.refresh()
        return self._loaded.serving.wrap_socket(
            raw, server_side=True, do_handshake_on_connect=False
        )

    def monitored(self) -> ssl.SSLContext:
        """For connections of monitoring, whose peers may have no certificate."""
        self.refresh()
        return self._loaded.monitored

    def dialling(self, raw: stdlib.socket) -> ssl.SSLSocket:
        """Our end of a dialled connection, before its handshake; ``check_node`` has to follow."""
        self.refresh()
        return self._loaded.dialling.wrap_socket(raw, do_handshake_on_connect=False)

    def dialled(self, raw: stdlib.socket) -> ssl.SSLSocket:
        """As ``dialling``, with its handshake and the check, for a thread that may block."""
        secured = self.dialling(raw)
        try:
            secured.do_handshake()
            self.check_node(secured)
        except BaseException:
            secured.close()
            raise
        return secured

    def check_node(self, secured: ssl.SSLSocket) -> None:
        """Raise ssl.SSLError unless a node of ours is at the other end of a dialled connection."""
        problem = ""
        try:
            peer = self.peer_of(secured)
        except ValueError as error:
            problem = str(error)
        else:
            problem = self.refusal(peer) or unfit_to_serve(peer, self.holder)
        if problem:
            raise UnfitPeerError(problem)

    def peer_of(self, secured: ssl.SSLSocket) -> Holder:
        """The peer of a connection after its handshake; raises ValueError if it has no identity."""
        return self.holder_of(secured.getpeercert() or {})

    def holder_of(self, certificate: Mapping[str, Any]) -> Holder:
        """The holder of a certificate that ssl has decoded; raises ValueError as above."""
        return Holder.of(
            (text for kind, text in certificate.get("subjectAltName", ()) if kind == "URI"),
            int(certificate["serialNumber"], 16),
            ssl.cert_time_to_seconds(certificate["notAfter"]),
        )

    def refusal(self, peer: Holder) -> str:
        """The reason why a peer is no longer trusted, as the end of a sentence; empty if it is."""
        if peer.serial in self._loaded.revoked:
            return f"its certificate {peer.serial:X} of {peer} is revoked"
        if peer.expires <= clocks.wall():
            return f"its certificate {peer.serial:X} of {peer} has expired"
        return ""

    # -- files -------------------------------------------------------------------------------

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """The marks by which a file differs from a later one of its name."""
        return tuple(_stamp(name) for name in self._files if name)

    def refresh(self) -> None:
        """Read files again that have changed."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._loaded = _load(self._files)
        except ConfigError as error:
            log.warning("changed certificates cannot be used; the former stay", reason=str(error))
        else:
            log.info("changed certificates are used from now on", identity=str(self.holder))


@cache
def _of(files: tuple[str, str, str, str]) -> Credentials:
    """The credentials of these files, the same for all parts of a process."""
    return Credentials(*files)


class UnfitPeerError(ssl.SSLError):
    """The peer has proved who it is, but is not one that we want to talk to."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def tls_problem(error: ssl.SSLError) -> str:
    """The reason why a connection was not secured, as the end of a sentence about the peer."""
    if isinstance(error, UnfitPeerError):
        return f"is not trusted: {error.problem}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"is not trusted: its certificate does not hold ({error.verify_message})"
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLEOFError):
        reason = "UNEXPECTED_EOF_WHILE_READING"
    _, mark, alert = reason.rpartition("ALERT_")
    if mark:
        return f"refuses our certificate or TLS: {alert.lower().replace('_', ' ')}"
    if reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "PACKET_LENGTH_TOO_LONG"):
        return f"does not speak TLS, or has closed the connection ({reason.lower()})"
    return f"does not speak TLS as we do ({reason.lower()})"


def is_tls(address: str) -> bool:
    return address.startswith(f"{SCHEME}://")


def missing(address: str) -> ConfigError:
    """The error if somebody without certificates dials, or listens at, an address with TLS."""
    return ConfigError(
        f"{address} is an address with TLS, and no certificate is given; set s4.tls.certificate, "
        f"s4.tls.key and s4.tls.authority, or the arguments of these names"
    )


def _load(files: _Files) -> _Loaded:
    from cryptography import x509  # late, because most commands need none of it

    try:
        text = Path(files.certificate).read_bytes()
        certificate = x509.load_pem_x509_certificates(text)[0]
        revoked = _serials(Path(files.revoked)) if files.revoked else frozenset()
        contexts = []
        for protocol, mode in (
            (ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED),
            (ssl.PROTOCOL_TLS_SERVER, ssl.CERT_REQUIRED),
            (ssl.PROTOCOL_TLS_SERVER, ssl.CERT_OPTIONAL),
        ):
            context = ssl.SSLContext(protocol)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # identities count instead
            context.verify_mode = mode
            context.load_verify_locations(files.authority)
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
            contexts.append(context)
        for context in contexts[1:]:
            context.num_tickets = 0
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        holder = Holder.of(
            names.get_values_for_type(x509.UniformResourceIdentifier),
            certificate.serial_number,
            certificate.not_valid_after_utc.timestamp(),
        )
    except x509.ExtensionNotFound:
        problem = "it has no identity: no URI s4://CLUSTER/ROLE/NAME in its names"
    except OSError as error:  # those of ssl name no file
        problem = str(error) if error.filename else f"{error.strerror or error}"
    except ValueError as error:
        problem = str(error)
    else:
        hosts = frozenset(each.lower() for each in names.get_values_for_type(x509.DNSName))
        return _Loaded(holder, contexts[0], contexts[1], contexts[2], revoked, hosts)
    named = ", ".join(f"{key} = {value}" for key, value in files._asdict().items() if value)
    raise ConfigError(
        f"the certificates ({named}) cannot be used: {problem}; s4.tls.certificate, s4.tls.key and "
        f"s4.tls.authority are files in PEM, the key without a password"
    )


def _no_password() -> str:
    raise ValueError("the key has a password")


def _serials(file: Path) -> frozenset[int]:
    """The serial numbers in a list; raises ValueError for anything else."""
    found = set()
    for number, line in enumerate(file.read_text().splitlines(), 1):
        serial = line.partition("#")[0].strip().removeprefix("serial=").replace(":", "")
        if serial:
            try:
                found.add(int(serial, 16))
            except ValueError:
                raise ValueError(f"{file}:{number}: {serial!r} is not a serial number") from None
    return frozenset(found)


def _stamp(name: str) -> tuple[int, int, int] | None:
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
