"""An authority for a development cluster: signs certificates, and writes them to files.

Rules
- Each holder has a folder of its own with all that it needs, and ``tls.properties`` with the
  settings. The authority's key is needed only to sign.
- Files are 0600, and folders 0700. A file is replaced as a whole: a node that reads it again while
  it changes finds the former one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from s4node import tokens
from s4node.config import settings
from s4node.errors import ConfigError
from s4node.net.certificates.identity import Holder

_AUTHORITY_DAYS = 3650
_CLOCKS = timedelta(minutes=5)
"""How far the clocks of machines may differ."""


class Authority:
    """The authority with this key and certificate, in ``folder``."""

    def __init__(
        self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> None:
        self.folder = folder
        self._key = key
        self._certificate = certificate

    @classmethod
    def in_folder(cls, folder: Path) -> Authority:
        """The authority in a folder, made if there is none; raises ConfigError."""
        files = folder / "authority.pem", folder / "authority.key"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not files[1].exists():
                key = ec.generate_private_key(ec.SECP256R1())
                made = _signed(key, key, x509.Name([]), [], timedelta(days=_AUTHORITY_DAYS))
                _write(files[1], _pem(key))
                _write(files[0], made.public_bytes(Encoding.PEM))
            certificate = x509.load_pem_x509_certificate(files[0].read_bytes())
            found = load_pem_private_key(files[1].read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the authority in {folder} cannot be used or made: {error}; name another folder"
            ) from error
        assert isinstance(found, ec.EllipticCurvePrivateKey)
        return cls(folder, found, certificate)

    def issue(self, identities: Sequence[str], days: float) -> Holder:
        """Write a new certificate for a holder with these identities, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _signed(self._key, key, self._certificate.subject, identities, timedelta(days=days))
        until = made.not_valid_after_utc.timestamp()
        holder = Holder.of(identities, made.serial_number, until)
        place = (self.folder / holder.name).resolve()
        place.mkdir(mode=0o700, exist_ok=True)
        files = {
            settings.TLS_CERTIFICATE: place / "certificate.pem",
            settings.TLS_KEY: place / "key.pem",
            settings.TLS_AUTHORITY: place / "authority.pem",
        }
        _write(files[settings.TLS_KEY], _pem(key))
        _write(files[settings.TLS_CERTIFICATE], made.public_bytes(Encoding.PEM))
        _write(files[settings.TLS_AUTHORITY], self._certificate.public_bytes(Encoding.PEM))
        lines = "".join(f"{setting.name} = {file}\n" for setting, file in files.items())
        _write(place / "tls.properties", lines.encode())
        return holder


def _signed(
    signing: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    identities: Sequence[str],
    holds: timedelta,
) -> x509.Certificate:
    now = datetime.now(UTC)
    is_authority = not identities
    name = identities[0].rpartition("/")[2] if identities else f"authority {tokens.fresh(6)}"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if is_authority else issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + holds) - _CLOCKS)
        .not_valid_after(now + holds)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if not is_authority:
        uris: list[x509.GeneralName] = [x509.UniformResourceIdentifier(each) for each in identities]
        both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        uris.append(x509.DNSName(name))  # for programs that want a host's name, such as nng's
        built = built.add_extension(x509.SubjectAlternativeName(uris), critical=False)
        built = built.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    return built.sign(signing, SHA256())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(file: Path, data: bytes) -> None:
    """Replace a file, which only its user may read."""
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_bytes(data)
    new.replace(file)
