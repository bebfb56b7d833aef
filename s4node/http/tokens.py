"""Tokens of programs that have no certificate: a file with a role, a name and a token in each line.

Rules
- Only the user of the node may read the file, and tokens come over TLS only, in a header.
- A token is compared with all of the file, in a time that does not depend on what they share.
- A changed file counts from the next request on. If it cannot be used, no token counts until it
  can: a token that was removed must not go on. No message has a part of a token.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path
from typing import NamedTuple

from s4node.config import settings
from s4node.config.config import Config
from s4node.config.kinds import is_name
from s4node.errors import ConfigError
from s4node.logger import get_logger
from s4node.net.certificates.identity import NODE, ROLES

log = get_logger("s4node.http")

_LEAST = 32
_ROLES = tuple(role for role in ROLES if role != NODE)
_FIX = "write a role, a name and a token in each line, and let only the node's user read the file"


class _Token(NamedTuple):
    role: str
    name: str
    digest: bytes


class Tokens:
    """The tokens of the configured file; raises ConfigError if it cannot be used."""

    def __init__(self, config: Config) -> None:
        self._file = config[settings.HTTP_TOKENS]
        self._stamp: tuple[int, ...] | None = None
        self._known: list[_Token] = []
        if self._file:
            self._stamp = self._look()
            self._known = self._lines_of()

    def __bool__(self) -> bool:
        return bool(self._file)

    def holder(self, authorization: str) -> tuple[str, str]:
        """The role and name of who sends this header; empty if nobody known does."""
        self._refresh()
        scheme, _, given = authorization.partition(" ")
        digest = _digest(given.strip())
        found = "", ""
        for each in self._known:
            if hmac.compare_digest(each.digest, digest):
                found = each.role, each.name
        return found if scheme.lower() == "bearer" else ("", "")

    def _refresh(self) -> None:
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp, self._known = stamp, []
        try:
            self._known = self._lines_of()
        except ConfigError as error:
            log.error("changed tokens cannot be used, so none counts", reason=str(error))

    def _look(self) -> tuple[int, ...] | None:
        try:
            found = Path(self._file).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode

    def _lines_of(self) -> list[_Token]:
        what = f"{settings.HTTP_TOKENS.name} = {self._file}"
        try:
            with Path(self._file).open(encoding="utf-8") as file:
                found = os.fstat(file.fileno())
                lines = file.read().splitlines()
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or "it is no text"
            raise ConfigError(f"{what} cannot be read: {why}; {_FIX}") from None
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or found.st_uid not in (0, os.getuid()):
            raise ConfigError(f"{what}: others may use the file (chmod 600 it); {_FIX}")
        tokens = []
        for number, line in enumerate(lines, 1):
            parts = line.split()
            if not parts or parts[0].startswith("#"):
                continue
            if len(parts) != 3 or parts[0] not in _ROLES or not is_name(parts[1]):
                roles = ", ".join(_ROLES)
                raise ConfigError(f"{what}: line {number} is no token of a {roles}; {_FIX}")
            if len(parts[2]) < _LEAST:
                raise ConfigError(
                    f"{what}: the token in line {number} has less than {_LEAST} characters; take "
                    f"a longer one, such as that of: openssl rand -hex 32"
                )
            tokens.append(_Token(parts[0], parts[1], _digest(parts[2])))
        return tokens


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
