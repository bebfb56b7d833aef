"""Keys: they distinguish PE instances, and assign them to partitions.

Rules
- A key is a ``str``, an ``int``, ``bytes``, or a tuple of those. Nothing else: ``True == 1 == 1.0``
  would silently share one instance, and ``None`` means that the KeyFinder found nothing.
- A composite key is a tuple, so ``("a^b",)`` and ``("a", "b")`` never meet. A list is taken as a
  tuple, and a tuple of one part is that part.
- A key is hashed from its bytes: a ``str`` from its UTF-8, anything else from its msgpack. So any
  language computes the same partition, in every process and release.
- key group = hash mod 4096; partition = group * T // 4096. Another T is only another slicing. With
  the hasher ``kafka`` the partition is hash mod T, as Kafka's producers choose it.
- CRC-32 alone is linear: the numbers 0 to 99 would meet 4 of 8 partitions. Multiplied as Knuth
  does, its upper bits spread keys that count up as evenly as a random function would.
- Python's hash of a tuple of numbers is known to everybody, so a peer can choose keys that all have
  the same one. A dict would then look through all of them for each, so it takes only a few. Hashes
  of texts and bytes are random, and of two such keys nobody can say that they share one. Such keys
  are counted by a few bits of their hash, in a table of a fixed size. The keys are compared only if
  one count is far above the others.
"""

from __future__ import annotations

import importlib
import zlib
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from struct import iter_unpack
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from s4node.errors import ConfigError, KeyFinderError, MisplacedKey

_COUNTERS = 1 << 16
_FEW = 256
MOST = 64
"""The most keys of one hash that a table takes, about."""

KEY_GROUPS = 4096
"""The number of slices of the key space; the largest number of partitions of an app."""

MULTIPLIER = 2_654_435_761
"""The multiplier of ``crc32m``: a prime near 2**32 / the golden ratio."""

Key: TypeAlias = str | int | bytes | tuple[str | int | bytes, ...]
"""A text, a whole number of 64 bits, bytes, or a tuple of at least two of those."""

MAX_KEY_LENGTH = 8192
"""The most characters and bytes of a key, of all its parts together."""

_PART_TYPES = (str, int, bytes)
_MEMO_LIMIT = 65_536
_MEMO_LENGTH = 256  # longer keys are not remembered
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


@runtime_checkable
class KeyFinder(Protocol):
    """Finds the key of an event.

    An object with ``get(event)`` that returns a :data:`Key` (or a list of its parts; ``"joe"``,
    ``("joe",)`` and ``["joe"]`` are one key, which the PE sees as ``"joe"``). Give it a
    ``name`` if producers and nodes use the same one: frames routed by a finder of the same name
    are trusted and not hashed again.
    """

    def get(self, event: Any, /) -> Key | list[Any]:
        """The key of ``event``; raise, or return None, and the event is refused."""
        ...


KeySpec: TypeAlias = str | Sequence[str] | KeyFinder | Callable[[Any], Any]
"""How a stream finds keys: an attribute's name, several names, a KeyFinder, or a function.

``"user"`` and ``["user"]`` are the same: a key of one part is that part.
"""


def check_key(key: Any) -> Key:
    """``key`` as a :data:`Key`, with lists made tuples; raises :class:`KeyFinderError` if bad."""
    if type(key) in _PART_TYPES:
        if type(key) is not int and len(key) > MAX_KEY_LENGTH:
            raise _too_long(len(key))
        return key  # type: ignore[no-any-return]
    if isinstance(key, (list, tuple)):
        if len(key) == 1:
            return check_key(key[0])
        if key and all(type(part) in _PART_TYPES for part in key):
            length = _length_of(key)
            if length > MAX_KEY_LENGTH:
                raise _too_long(length)
            return tuple(key)
    what = "nothing" if key is None or key in ((), []) else f"{key!r} ({type(key).__name__})"
    raise KeyFinderError(
        f"the KeyFinder returned {what}; a key is a str, an int, bytes, or a tuple of those"
    )


def _length_of(key: Any) -> int:
    """The characters and bytes of a key; a number counts as 1."""
    if isinstance(key, (list, tuple)):
        return sum(1 if type(part) is int else len(part) for part in key)
    return 1 if type(key) is int else len(key)


def _too_long(length: int) -> KeyFinderError:
    return KeyFinderError(
        f"the KeyFinder returned a key of {length} characters, more than {MAX_KEY_LENGTH}; use a "
        f"shorter one, such as a hash of it"
    )


def key_bytes(key: Key) -> bytes:
    """The bytes that a hasher sees: UTF-8 of a ``str``, msgpack of anything else.

    Raises :class:`KeyFinderError` for a number beyond 64 bits and for text that is not Unicode.
    """
    try:
        return key.encode() if type(key) is str else _encode(key)
    except (UnicodeEncodeError, OverflowError) as error:
        raise KeyFinderError(
            f"the KeyFinder returned {key!r}, which has no bytes: {error}"
        ) from error


def identity(key: Any) -> Key:
    """The :data:`Key` of a new instance; raises :class:`KeyFinderError` if it is not a key.

    With a single partition no key is hashed, so a key that cannot be encoded is refused here.
    """
    if type(key) is str and len(key) <= MAX_KEY_LENGTH and key.isascii():
        return key
    checked = check_key(key)
    key_bytes(checked)
    return checked


class Hasher(Protocol):
    """Maps a key to a whole number >= 0, the same in every process and release."""

    def __call__(self, key: Key, /) -> int: ...


def crc32m(key: Key) -> int:
    """The default hasher: CRC-32 (IEEE 802.3) of the key's bytes, spread by a multiplication.

    It returns the upper 12 bits of CRC * 2654435761 modulo 2**32: 0 <= hash < 4096.
    """
    return zlib.crc32(key_bytes(key)) * MULTIPLIER >> 20 & 0xFFF


def s4(key: Key) -> int:
    """Apache S4's ``DefaultHasher``: the hash is S4's to the bit.

    The partition is not: S4 takes the hash modulo the number of partitions, s4node slices key
    groups, over which this hash spreads keys less evenly than ``crc32m``.

    Sedgewick's RS hash over UTF-16 code units with Java's wrap-around. The parts of a composite
    key are joined with ``^`` as S4 does.
    """
    parts = key if isinstance(key, tuple) else (key,)
    text = "^".join(map(_text, parts))
    units = text.encode("utf-16-be", "surrogatepass")
    a, b, value = 63689, 378551, 0
    for i in range(0, len(units), 2):
        value = (value * a + (units[i] << 8 | units[i + 1])) & 0xFFFF_FFFF_FFFF_FFFF
        a = (a * b) & 0xFFFF_FFFF
        if a >= 0x8000_0000:  # a Java int: sign-extended before it meets the long
            a -= 0x1_0000_0000
    if value >= 0x8000_0000_0000_0000:
        value = 0x1_0000_0000_0000_0000 - value
    return value


def _text(part: str | int | bytes) -> str:
    return part.decode("latin-1") if isinstance(part, bytes) else str(part)


def record_key(key: Key) -> bytes:
    """The bytes of a key in Kafka: text and bytes as they are, a number as text, else JSON."""
    if type(key) is bytes:
        return key
    if type(key) is tuple:
        return _encode_json(key)
    return key_bytes(key if type(key) is str else str(key))


def kafka(key: Key) -> int:
    """The murmur2 by which Kafka's producers choose partitions: 0 <= hash < 2**31."""
    data = record_key(key)
    whole = len(data) & ~3
    value = 0x9747_B28C ^ len(data)
    for (part,) in iter_unpack("<I", data[:whole]):
        part = part * 0x5BD1_E995 & 0xFFFF_FFFF
        part = (part ^ part >> 24) * 0x5BD1_E995
        value = (value * 0x5BD1_E995 ^ part) & 0xFFFF_FFFF
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * 0x5BD1_E995 & 0xFFFF_FFFF
    value = (value ^ value >> 13) * 0x5BD1_E995 & 0xFFFF_FFFF
    return (value ^ value >> 15) & 0x7FFF_FFFF


_HASHERS: dict[str, Hasher] = {"crc32m": crc32m, "s4": s4, "kafka": kafka}


def hasher_named(name: str) -> Hasher:
    """The hasher ``crc32m``, ``s4``, ``kafka``, or your own as ``package.module:function``."""
    if name in _HASHERS:
        return _HASHERS[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(
            f"no hasher {name!r}; known are {', '.join(_HASHERS)}, or package.module:function"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"hasher {name!r} cannot be loaded: {error}") from error
    if not callable(found):
        raise ConfigError(f"hasher {name!r} is not callable; give a function of one key")
    return found  # type: ignore[no-any-return]


class KeyCrowding:
    """The hashes of the new keys of one table."""

    __slots__ = ("_counts", "_crowded", "_looked", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._counts: array[int] | None = None  # not for tables of other keys
        self._looked: dict[int, int] = {}  # the count at which the keys of a counter were looked at
        self._crowded: set[int] = set()

    def check_new(self, key: Hashable, table: Iterable[Hashable]) -> None:
        """Count a key that is to come into the table; raise KeyFinderError if its hash is taken."""
        if type(key) is not tuple or sum(type(part) is int for part in key) < 2:
            return
        known = hash(key)
        if known not in self._crowded:
            if self._counts is None:
                self._counts = array("L", bytes(_COUNTERS * array("L").itemsize))
            at = (known ^ known >> 32) & _COUNTERS - 1
            self._total += 1
            self._counts[at] += 1
            count = self._counts[at]
            fair = _FEW + 8 * self._total // _COUNTERS
            if count <= max(fair, 2 * self._looked.get(at, 0)):
                return
            self._looked[at] = count
            if sum(hash(each) == known for each in table) < MOST:
                return
            self._crowded.add(known)
        raise KeyFinderError(
            f"the key {key!r} has the same hash as many other keys; such keys are refused, because "
            f"looking them up is slow. Add a text to the key"
        )


class Partitioner:
    """Maps keys to ``partitions`` (1 to 4096) partitions."""

    __slots__ = ("_memo", "hasher", "partitions")

    def __init__(self, partitions: int, hasher: Hasher = crc32m) -> None:
        if not 1 <= partitions <= KEY_GROUPS:
            raise ConfigError(f"{partitions} partitions; give 1 to {KEY_GROUPS}")
        self.partitions = partitions
        self.hasher = hasher
        self._memo = _Memo(self)

    @property
    def memo(self) -> dict[Key, int]:
        """``memo[key]`` is the key's partition: a dict lookup for recently seen keys."""
        return self._memo

    def partition_of(self, key: Key) -> int:
        """The partition of ``key``, from 0 to ``partitions - 1``."""
        number = self.hasher(check_key(key))
        if self.hasher is kafka:
            return number % self.partitions
        return number % KEY_GROUPS * self.partitions // KEY_GROUPS


class _Memo(dict[Key, int]):
    __slots__ = ("_crowding", "_partitioner")

    def __init__(self, partitioner: Partitioner) -> None:
        super().__init__()
        self._crowding = KeyCrowding()
        self._partitioner = partitioner

    def __missing__(self, key: Key) -> int:
        partition = self._partitioner.partition_of(key)
        if _length_of(key) > _MEMO_LENGTH:
            return partition
        self._crowding.check_new(key, self)
        if len(self) >= _MEMO_LIMIT:  # hot keys return at once
            self.clear()
            self._crowding = KeyCrowding()
        self[key] = partition
        return partition


class RoutedKeys(KeyCrowding):
    """The new keys of a table of ``partition``, whose events came by ``topics`` that are routed."""

    __slots__ = ("_partition", "_partitioner", "_topics")

    def __init__(self, partitioner: Partitioner, partition: int, topics: str) -> None:
        super().__init__()
        self._partitioner = partitioner
        self._partition = partition
        self._topics = topics

    def check_new(self, key: Hashable, table: Iterable[Hashable]) -> None:
        """As that of any table; raises MisplacedKey if the key belongs to another partition."""
        super().check_new(key, table)
        home = self._partitioner.partition_of(key)  # type: ignore[arg-type]
        if home != self._partition:
            raise MisplacedKey(key, self._topics, self._partition, home)
