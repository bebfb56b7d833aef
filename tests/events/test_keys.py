"""The promises of keys: one key lives in one place, in every process, language and release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections import Counter
from contextlib import suppress
from datetime import date, timedelta
from itertools import accumulate, pairwise
from typing import Any

import pytest
from harness import colliding_pairs
from hypothesis import given
from hypothesis import strategies as st

from s4node.config.settings import HASHER
from s4node.errors import ConfigError, KeyFinderError
from s4node.events.keys import (
    KEY_GROUPS,
    Key,
    KeyCrowding,
    Partitioner,
    check_key,
    crc32m,
    hasher_named,
    kafka,
    key_bytes,
    s4,
)

PARTS = st.text(max_size=8) | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=8)
KEYS = PARTS | st.lists(PARTS, min_size=2, max_size=4).map(tuple)

# --- the hasher s4 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("joe", 7844889371595987650),
        ("sentence", 5866143518888260667),
        ("classifier", 4711301083317099537),
        ("be", 162706375325),
        ("doobie", 5837467770337402028),
        ("42", 86333995074),
        ("9999", 1350364219334260784),
        ("a^b", 8483516006712892857),
        ("joe^smith", 2048274648658985635),
        ("héllo", 131869971775669390),
    ],
)
def test_s4_hashes_as_apache_s4_does(key: str, expected: int) -> None:
    assert s4(key) == expected


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [(4, [2503, 2498, 2497, 2502]), (3, [3334, 3334, 3332]), (10, [1000] * 10)],
)
def test_s4_spreads_ten_thousand_numbers_as_apache_s4_does(
    partitions: int, expected: list[int]
) -> None:
    found = Counter(s4(str(number)) % partitions for number in range(10_000))
    assert [found[partition] for partition in range(partitions)] == expected


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (("joe", "smith"), "joe^smith"),
        (("a", "b"), "a^b"),
        (42, "42"),
        (-7, "-7"),
        (("joe", 42), "joe^42"),
        (b"joe", "joe"),
        (("joe", b"\xe9"), "joe^é"),
    ],
)
def test_s4_joins_the_parts_of_a_key_as_apache_s4_does(key: Key, text: str) -> None:
    assert s4(key) == s4(text)


def test_s4_hashes_utf_16_units_and_even_lone_surrogates() -> None:
    def rs(units: list[int]) -> int:
        """Java's arithmetic, written down naively."""
        b, a, h = 378551, 63689, 0
        for unit in units:
            h = (h * a + unit + 2**63) % 2**64 - 2**63
            a = (a * b + 2**31) % 2**32 - 2**31
        return abs(h)

    assert s4("😀 joe") == rs([0xD83D, 0xDE00, 0x20, 0x6A, 0x6F, 0x65])
    assert s4("\ud83d") == 0xD83D


# --- the hasher crc32m ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "seen", "checksum", "expected"),
    [
        ("", b"", 0, 0),
        ("a", b"a", 3904355907, 4005),
        ("abc", b"abc", 891568578, 3037),
        ("123456789", b"123456789", 0xCBF43926, 736),  # the check value of CRC-32
        (
            "The quick brown fox jumps over the lazy dog",
            b"The quick brown fox jumps over the lazy dog",
            0x414FA339,
            183,
        ),
        ("héllo", b"h\xc3\xa9llo", 2654700086, 3412),
        (1, b"\x01", 2768625435, 1925),
        (-1, b"\xff", 4278190080, 1264),
        (300, b"\xcd\x01\x2c", 1307935139, 1616),
        (b"a", b"\xc4\x01a", 1246332673, 3021),
        (("a", "b"), b"\x92\xa1a\xa1b", 3313947078, 2318),
        (("joe", 7, b"x"), b"\x93\xa3joe\x07\xc4\x01x", 4208005705, 894),
    ],
)
def test_crc32m_hashes_these_bytes_to_these_numbers(
    key: Key, seen: bytes, checksum: int, expected: int
) -> None:
    assert key_bytes(key) == seen
    assert zlib.crc32(seen) == checksum
    assert crc32m(key) == expected


@given(KEYS, KEYS)
def test_two_keys_have_the_same_bytes_only_if_they_are_the_same_but_for_text(
    one: Key, other: Key
) -> None:
    """A text is hashed bare; of the other kinds no two keys share their bytes."""
    if isinstance(one, str) == isinstance(other, str):
        assert (key_bytes(one) == key_bytes(other)) == (one == other)


def test_a_composite_key_is_not_what_its_parts_spell_together() -> None:
    keys: list[Key] = [
        "ab",
        ("a", "b"),
        "a^b",
        ("a^b", ""),
        ("a", "^b"),
        ("", "a^b"),
        ("a", b"b"),
        ("1", "2"),
        (1, 2),
        (12, ""),
        ("a", "b", ""),
        b"ab",
    ]
    assert len(set(keys)) == len({key_bytes(key) for key in keys}) == 12


# --- what is a key -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_key", "key"),
    [
        ("joe", "joe"),
        ("", ""),
        (7, 7),
        (b"\x00", b"\x00"),
        (("joe", 7), ("joe", 7)),
        (["joe", 7], ("joe", 7)),
        (("joe",), "joe"),
        ([7], 7),
        ([("joe",)], "joe"),
    ],
)
def test_a_key_is_a_text_a_number_bytes_or_several_of_those(given_key: Any, key: Key) -> None:
    assert check_key(given_key) == key


class Name(str):
    """A text of another type."""


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (None, "nothing"),
        ((), "nothing"),
        ([], "nothing"),
        (True, "True (bool)"),
        (1.0, "1.0 (float)"),
        (("a", True), "('a', True) (tuple)"),
        (("a", None), "('a', None) (tuple)"),
        (("a", ("b", "c")), "('a', ('b', 'c')) (tuple)"),
        ([["a", "b"], "c"], "[['a', 'b'], 'c'] (list)"),
        ({"a"}, "{'a'} (set)"),
        (Name("joe"), "'joe' (Name)"),
        (bytearray(b"a"), "bytearray(b'a') (bytearray)"),
    ],
)
def test_nothing_else_is_a_key(bad: Any, words: str) -> None:
    with pytest.raises(KeyFinderError) as caught:
        check_key(bad)
    assert str(caught.value) == (
        f"the KeyFinder returned {words}; a key is a str, an int, bytes, or a tuple of those"
    )


@pytest.mark.parametrize("bad", [None, True, 1.0, ("a", True), 2**64, -(2**63) - 1, "\ud800"])
def test_a_partitioner_refuses_an_invalid_key_each_time(bad: Any) -> None:
    partitioner = Partitioner(4)
    for _ in range(2):
        with pytest.raises(KeyFinderError):
            partitioner.partition_of(bad)
        with pytest.raises(KeyFinderError):
            partitioner.memo[bad]
    assert len(partitioner.memo) == 0


def test_a_key_too_large_for_its_bytes_is_named_in_the_error() -> None:
    with pytest.raises(KeyFinderError, match="36893488147419103232"):
        crc32m(2**65)


# --- the hasher kafka ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "murmur2"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_kafka_hashes_as_kafkas_producers_do(key: str, murmur2: int) -> None:
    """The pairs are those of Kafka's own test."""
    assert kafka(key) == kafka(key.encode()) == murmur2 & 0x7FFF_FFFF
    for partitions in (1, 3, 12, 100):
        assert Partitioner(partitions, kafka).partition_of(key) == kafka(key) % partitions


def test_kafka_hashes_keys_as_they_are_in_records() -> None:
    assert kafka(21) == kafka("21")
    assert kafka(("a", 1)) == kafka('["a",1]')
    assert kafka("é") == kafka("é".encode())


# --- partitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "partitions", "expected"),
    [
        ("a", 1, 0),
        ("a", 4, 3),
        ("a", 64, 62),
        ("a", 4096, 4005),
        ("123456789", 4, 0),  # group 736
        ("", 64, 0),
        (("a", "b"), 64, 36),  # group 2318
        (1, 64, 30),  # group 1925
    ],
)
def test_the_partition_of_these_keys_never_changes(
    key: Key, partitions: int, expected: int
) -> None:
    assert Partitioner(partitions).partition_of(key) == expected


@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 7, 64, 100, 1000, 4095, 4096])
def test_each_partition_is_one_slice_of_the_groups_and_slices_differ_by_one(
    partitions: int,
) -> None:
    partitioner = Partitioner(partitions, lambda group: group)  # type: ignore[arg-type,return-value]
    found = [partitioner.partition_of(group) for group in range(KEY_GROUPS)]
    assert found == sorted(found)
    sizes = Counter(found)
    assert sorted(sizes) == list(range(partitions))
    assert max(sizes.values()) - min(sizes.values()) <= 1


@given(st.lists(KEYS, max_size=20), st.integers(1, 64), st.integers(1, 64))
def test_another_number_of_partitions_only_slices_the_same_groups_anew(
    keys: list[Key], few: int, times: int
) -> None:
    """Keys of one group stay together, and a multiple of T only splits partitions."""
    coarse, fine = Partitioner(few), Partitioner(few * times)
    for key in keys:
        group = crc32m(key) % 4096
        assert coarse.partition_of(key) == group * few // 4096
        assert coarse.partition_of(key) == fine.partition_of(key) // times


@pytest.mark.parametrize(
    ("hasher", "partitions", "slack"),
    [
        (crc32m, 2, 0.02),
        (crc32m, 3, 0.02),
        (crc32m, 7, 0.04),
        (crc32m, 16, 0.06),
        (crc32m, 64, 0.12),
        (s4, 4, 0.2),
        (s4, 16, 0.2),
    ],
)
def test_partitions_get_nearly_even_shares_of_ordinary_keys(
    hasher: Any, partitions: int, slack: float
) -> None:
    """Within four standard deviations of a random function; S4's is not made for slices."""
    partitioner = Partitioner(partitions, hasher)
    for keys in ([f"user-{n}" for n in range(64_000)], list(range(64_000))):
        shares = Counter(map(partitioner.partition_of, keys))
        even = 64_000 / partitions
        assert len(shares) == partitions
        assert (1 - slack) * even < min(shares.values())
        assert max(shares.values()) < (1 + slack) * even


def bound(freedom: int) -> float:
    """The bound of chi-square in 99.9 % of all cases (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + 3.0902 * spread**0.5) ** 3)


def test_keys_that_count_up_are_spread_as_evenly_as_at_random() -> None:
    first, most = date(1990, 1, 1), 10_000
    beyond = cases = 0
    for keys in (
        list(range(most)),
        [f"u{n}" for n in range(most)],
        [str(first + timedelta(n)) for n in range(most)],
    ):
        groups = [hasher_named(HASHER.default)(key) % KEY_GROUPS for key in keys]
        for n in (32, 64, 100, 128, 200, 256, 365, 500, 512, 1000, 1024, 3000, 4096, most):
            counts = Counter(groups[:n])
            below = [0, *accumulate(counts[group] for group in range(KEY_GROUPS))]
            for partitions in range(2, 65):
                begins = [-(-p * KEY_GROUPS // partitions) for p in range(partitions + 1)]
                slots = [end - begin for begin, end in pairwise(begins)]
                shares = [below[end] - below[begin] for begin, end in pairwise(begins)]
                even = [n * size / KEY_GROUPS for size in slots]
                square = sum((x - e) ** 2 / e for x, e in zip(shares, even, strict=True))
                beyond += square > bound(partitions - 1)
                cases += 1
    assert cases == 3 * 14 * 63
    assert beyond <= cases / 500


@given(st.lists(KEYS, max_size=50), st.integers(1, 4096))
def test_the_memo_says_what_the_hasher_says(keys: list[Key], partitions: int) -> None:
    partitioner = Partitioner(partitions)
    for key in keys + keys:
        assert partitioner.memo[key] == partitioner.partition_of(key)


def test_the_memo_is_bounded_and_hot_keys_come_back() -> None:
    partitioner = Partitioner(16)
    largest = 0
    for number in range(150_000):
        partitioner.memo[number]
        largest = max(largest, len(partitioner.memo))
    assert largest == 65_536
    assert partitioner.memo[0] == partitioner.partition_of(0)
    assert 0 in partitioner.memo


@pytest.mark.parametrize("partitions", [0, -1, 4097])
def test_partitions_are_1_to_4096(partitions: int) -> None:
    with pytest.raises(ConfigError, match=f"{partitions} partitions; give 1 to 4096"):
        Partitioner(partitions)


def test_another_process_with_another_hash_seed_finds_the_same_partitions() -> None:
    keys: list[Any] = ["", "joe", "héllo", 0, -5, 2**63, b"\x00\xff", ("a", 1, b"b")]
    program = (
        "import json; from s4node.events.keys import *\n"
        "keys = ['', 'joe', 'héllo', 0, -5, 2**63, b'\\x00\\xff', ('a', 1, b'b')]\n"
        "print(json.dumps([[hash('joe')]] + [[Partitioner(t, h).partition_of(k) for k in keys]\n"
        "    for h in (crc32m, s4, kafka) for t in (1, 7, 64, 4096)]))"
    )
    answers = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        )
        answers.append(json.loads(done.stdout))
    (hashes, *partitions), (other_hashes, *other_partitions) = answers
    assert hashes != other_hashes
    assert partitions == other_partitions
    assert partitions == [
        [Partitioner(t, h).partition_of(k) for k in keys]
        for h in (crc32m, s4, kafka)
        for t in (1, 7, 64, 4096)
    ]


# --- hashers by name -----------------------------------------------------------------------------


def test_hashers_have_names() -> None:
    assert hasher_named("crc32m") is crc32m
    assert hasher_named("s4") is s4
    assert hasher_named("kafka") is kafka


def test_your_own_hasher_is_module_colon_function() -> None:
    assert hasher_named("zlib:adler32") is zlib.adler32
    assert hasher_named("os.path:basename") is os.path.basename


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("md5", "no hasher 'md5'; known are crc32m, s4, kafka, or package.module:function"),
        ("", "no hasher ''; known are crc32m, s4, kafka, or package.module:function"),
        ("zlib:", "no hasher 'zlib:'; known are crc32m, s4, kafka, or package.module:function"),
        ("nosuchmodule:f", "hasher 'nosuchmodule:f' cannot be loaded: No module named"),
        ("zlib:nosuch", "hasher 'zlib:nosuch' cannot be loaded: module 'zlib' has no attribute"),
        (":f", "hasher ':f' cannot be loaded: "),
        (".keys:f", "hasher '.keys:f' cannot be loaded: "),
        ("math:pi", "hasher 'math:pi' is not callable; give a function of one key"),
    ],
)
def test_a_hasher_that_cannot_be_had_is_a_config_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hasher_named(name)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("key", ["x" * 8193, b"x" * 8193, ("x" * 8000, "y" * 192, 1)])
def test_a_key_that_is_too_long_is_refused(key: Key) -> None:
    with pytest.raises(KeyFinderError, match="a key of 8193 characters, more than 8192"):
        check_key(key)
    with pytest.raises(KeyFinderError, match="a key of 8193 characters, more than 8192"):
        Partitioner(4).memo[key]


def test_long_keys_are_not_remembered() -> None:
    memo = Partitioner(4).memo
    assert memo["x" * 5000] == Partitioner(4).partition_of("x" * 5000)
    assert not memo


def test_of_keys_that_share_one_hash_a_table_takes_a_few_hundred() -> None:
    crowding, table = KeyCrowding(), dict[tuple[int, int], int]()
    keys = colliding_pairs(1000)
    assert len(set(map(hash, keys))) == 1
    refused = 0
    for key in keys:
        try:
            crowding.check_new(key, table)
        except KeyFinderError:
            refused += 1
        else:
            table[key] = 1
    assert len(table) <= 300
    assert refused == 1000 - len(table)
    crowding.check_new((1, 1), table)  # others go on


def test_keys_that_nobody_has_chosen_all_come_in() -> None:
    crowding, table = KeyCrowding(), dict[tuple[int, int], int]()
    for key in ((a, b) for a in range(700) for b in range(700)):
        crowding.check_new(key, table)
        table[key] = 1
    assert len(table) == 490_000


def test_a_key_that_comes_and_goes_is_taken_each_time() -> None:
    crowding, table = KeyCrowding(), dict[tuple[int, int], int]()
    for _ in range(100_000):
        crowding.check_new((1, 2), table)
        table[1, 2] = 1
        del table[1, 2]


def test_the_memory_of_recent_partitions_refuses_them_too() -> None:
    memo = Partitioner(4).memo
    *others, last = colliding_pairs(1000)
    for key in others:
        with suppress(KeyFinderError):
            memo[key]
    with pytest.raises(KeyFinderError, match="has the same hash as many other keys"):
        memo[last]
    assert len(memo) <= 300
