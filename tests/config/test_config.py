"""The promises of the configuration: every key is known, every mistake told, nothing guessed."""

from __future__ import annotations

import pickle
import string
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from s4node.config import properties
from s4node.config import settings as cfg
from s4node.config.config import Config
from s4node.config.key import Setting
from s4node.config.properties import Problem
from s4node.errors import ConfigError

# --- reading files -------------------------------------------------------------------------------


def test_comments_blank_lines_and_spaces_do_not_count(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        "# a comment = with an equals sign\n"
        "\n"
        "   ! another, which does not go on \\\n"
        "\t s4.cluster.name=east\r\n"
        "   \n"
        "s4.app.query   =  a = b # no comment here  ",
    )
    assert config[cfg.CLUSTER_NAME] == "east"
    assert config.matching(cfg.APP_PARAMETER) == {"query": "a = b # no comment here"}


def test_a_backslash_at_the_end_joins_the_next_line(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        "s4.stream.clicks.consumers = east, \\\n"
        "                             west,\\  \n"
        "  north\n"
        "s4.app.title = one\\\n"
        "# two\n"
        "s4.app.path = C:\\temp\n",
    )
    assert config.matching(cfg.STREAM_CONSUMERS) == {"clicks": ("east", "west", "north")}
    assert config.matching(cfg.APP_PARAMETER) == {"title": "one# two", "path": "C:\\temp"}
    assert config.origin("s4.stream.clicks.consumers").endswith("node.properties:1")
    assert config.origin("s4.app.path").endswith("node.properties:6")


def test_a_mistake_in_joined_lines_is_reported_at_the_first_of_them(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "\ns4.hasher = \\\n  md5\n") == [
        (
            "2: s4.hasher = 'md5' is neither crc32m, s4, kafka nor package.module:function; "
            "write e.g. crc32m"
        )
    ]


def test_a_mistake_in_a_value_that_is_empty_by_default_is_reported_without_an_example(
    tmp_path: Path,
) -> None:
    told = "which is a range that ends before it begins (3 is above 1)"
    [problem] = problems_of(tmp_path, "task.broadcast.inputs = log.rules#[3-1]\n")
    assert problem.endswith(told)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    assert load_text(tmp_path, "\ufeffs4.cluster.name = east")[cfg.CLUSTER_NAME] == "east"


def test_only_line_ends_end_a_line(tmp_path: Path) -> None:
    config = load_text(tmp_path, "s4.app.text = one\u2028two\x0bthree\n")
    assert config.matching(cfg.APP_PARAMETER) == {"text": "one\u2028two\x0bthree"}


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load_text(tmp_path, "")[cfg.CLUSTER_NAME] == "default"


# --- mistakes ------------------------------------------------------------------------------------


def test_all_mistakes_are_reported_together_in_the_order_of_files_and_lines(tmp_path: Path) -> None:
    first = write(
        tmp_path,
        "s4.stream.workQueSize = 5\n"
        "s4.sender.workQueueSize = ten\n"
        "s4.hasher: crc32m\n"
        "s4.cluster.partitions = 5000\n"
        "s4.logger_format = xml\n",
        "first.properties",
    )
    missing = tmp_path / "missing.properties"
    last = write(tmp_path, "= 5\n\ns4.cluster.partitions = 8\n", "last.properties")
    with pytest.raises(ConfigError) as caught:
        Config.load([first, missing, last], {"s4.comm.timeout": "soon"})
    assert str(caught.value).split("\n") == [
        f"{first}:1: unknown key 's4.stream.workQueSize'; did you mean 's4.stream.workQueueSize'?",
        f"{first}:2: s4.sender.workQueueSize = 'ten' is not a whole number; write e.g. 10000",
        f"{first}:3: 's4.hasher: crc32m' has no '='; write key = value",
        f"{first}:4: s4.cluster.partitions = '5000' is out of bounds (1 to 4096); write e.g. 1",
        f"{first}:5: s4.logger_format = 'xml' is not one of auto, console, json; write e.g. auto",
        f"{missing}: cannot be read (No such file or directory); name a readable file",
        f"{last}:1: '= 5' has no key; write key = value",
        "command line: s4.comm.timeout = 'soon' is not a number of milliseconds; write e.g. 1000",
    ]
    assert caught.value.problems[1] == Problem(
        str(first),
        2,
        "s4.sender.workQueueSize",
        "s4.sender.workQueueSize = 'ten' is not a whole number; write e.g. 10000",
    )
    assert len(caught.value.problems) == 8


def test_a_mistake_is_reported_even_if_another_value_wins(tmp_path: Path) -> None:
    path = write(tmp_path, "s4.cluster.partitions = many\n")
    with pytest.raises(ConfigError, match="is not a whole number"):
        Config.load([path], {"s4.cluster.partitions": "2"})


def test_a_key_set_twice_in_one_file_names_both_lines(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "s4.hasher = s4\n\ns4.hasher = crc32m\n") == [
        "3: s4.hasher is already set on line 1; remove one of the two"
    ]


def test_a_file_may_not_end_in_the_middle_of_a_value(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "s4.app.path = C:\\temp\\\n") == [
        "1: s4.app.path ends in '\\' but no line follows; remove it"
    ]


def test_a_file_that_is_not_utf_8_is_reported_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.properties"
    path.write_bytes(b"s4.cluster.name = east\n# caf\xe9\n")
    with pytest.raises(ConfigError) as caught:
        Config.load([path])
    assert str(caught.value) == f"{path}:2: is not UTF-8 text; save the file as UTF-8"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        Config.load([tmp_path])


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("s4.stream.workQueSize", "s4.stream.workQueueSize"),
        ("S4.Stream.WorkQueueSize", "s4.stream.workQueueSize"),
        ("task.shutdown", "task.shutdown.ms"),
        ("s4.logger.level", "s4.logger_level"),
        ("s4.cluster.east.adress", "s4.cluster.east.address"),
        ("s4.clusters.east.address", "s4.cluster.east.address"),
        ("s4.app", "s4.app.<parameter>"),
        ("s4.cluster.adress", "s4.cluster.<cluster>.address"),
        ("s4.stream.my.clicks.consumer", "s4.stream.my.clicks.consumers"),
        ("s4.apps.colour", "s4.app.colour"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(wrong: str, meant: str) -> None:
    assert problem_with(wrong, "1") == f"code: unknown key {wrong!r}; did you mean {meant!r}?"


@pytest.mark.parametrize("key", ["colour", "s4.xyz.abc", "spark.executor.memory"])
def test_a_key_that_is_like_no_other_points_to_the_list(key: str) -> None:
    assert problem_with(key, "1") == (
        f"code: unknown key {key!r}; default.s4.comm.properties lists every key"
    )


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("s4.cluster.<cluster>.address", "write a name in place of the placeholder"),
        ("s4.cluster..address", "did you mean 's4.cluster.<cluster>.address'?"),
        ("s4.app.", "did you mean 's4.app.<parameter>'?"),
    ],
)
def test_a_placeholder_must_be_filled_in(key: str, advice: str) -> None:
    assert problem_with(key, "tcp://east:1") == f"code: unknown key {key!r}; {advice}"


@pytest.mark.parametrize(
    ("key", "text", "what"),
    [
        ("s4.cluster.name", "", "is not a name"),
        ("s4.cluster.name", "east, west", "is not a name"),
        ("s4.cluster.partitions", "0", "is out of bounds (1 to 4096)"),
        ("s4.cluster.partitions", "1.5", "is not a whole number"),
        ("s4.hasher", "zlib.crc32", "is neither"),
        ("s4.hasher", "my module:hash", "is neither"),
        ("s4.listener.maxFrameBytes", "1 MiB", "is not a whole number"),
        ("s4.listener.maxFrameBytes", "1", "is out of bounds (1024 to 2147483647)"),
        ("s4.stream.workQueueSize", "-1", "is out of bounds (1 or more)"),
        ("s4.comm.timeout", "0", "is out of bounds (1 or more)"),
        ("s4.comm.timeout", "inf", "is not a number of milliseconds"),
        ("s4.comm.timeout", "nan", "is not a number of milliseconds"),
        ("s4.container.pulseTimeout", "50", "is out of bounds (100 or more)"),
        ("s4.logger_level", "INFO", "is not one of debug, info, warning, error"),
        ("s4.stream.clicks.consumers", "east,,west", "has '' in it, which is not a name"),
        ("s4.stream.clicks.consumers", "east, west, east", "names 'east' twice"),
    ],
)
def test_a_value_that_does_not_fit_says_why(key: str, text: str, what: str) -> None:
    assert f"code: {key} = {text!r} {what}" in problem_with(key, text)


@pytest.mark.parametrize(
    ("key", "text", "what"),
    [
        ("s4.stream.a.consumers", "b, \udcff", "s4.stream.a.consumers = 'b, \\udcff'"),
        ("s4.log.folder", "log\udcff", "s4.log.folder = 'log\\udcff'"),
        ("s4.app.x", "\udcff", "s4.app.x = '\\udcff'"),
        ("s4.app.\udcff", "x", "the key 's4.app.\\udcff'"),
        ("s4.cluster.\udcff.address", "tcp://east:1", "the key 's4.cluster.\\udcff.address'"),
    ],
)
def test_a_key_or_value_that_is_no_utf_8_is_refused(key: str, text: str, what: str) -> None:
    assert f"code: {what} is not UTF-8; write it in UTF-8" in problem_with(key, text)


def test_a_nul_character_is_reported_with_its_line(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "s4.log.folder = a\0b\ns4.app.\0 = x\ns4.app.x = \0 y\n") == [
        "1: s4.log.folder = 'a\\x00b' has a NUL character; remove it",
        "2: the key 's4.app.\\x00' has a NUL character; remove it",
        "3: s4.app.x = '\\x00 y' has a NUL character; remove it",
    ]


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:0", "tcp://node-1.example.org:65535", "tcp://my_host:12000", "tcp://[::1]:1"],
)
def test_an_address_has_scheme_host_and_port(address: str) -> None:
    assert Config.from_values({"s4.listener.address": address})[cfg.LISTENER_ADDRESS] == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:12000",
        "udp://127.0.0.1:12000",
        "tcp://127.0.0.1",
        "tcp://:12000",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:12000/path",
        "tcp://two words:12000",
        "tcp://::1:12000",
    ],
)
def test_anything_else_is_no_address(address: str) -> None:
    assert "s4.listener.address" in problem_with("s4.listener.address", address)


def test_nobody_can_connect_to_port_0() -> None:
    assert problem_with("s4.cluster.east.address", "tcp://east:0") == (
        "code: s4.cluster.east.address = 'tcp://east:0' has a port out of bounds (1 to 65535); "
        "write e.g. tcp://127.0.0.1:12001"
    )


def test_a_password_in_a_url_is_refused_and_not_told() -> None:
    with pytest.raises(ConfigError, match=r"'sftp://me:\*\*\*@host/s4' has a password") as told:
        Config.from_values({"s4.state.url": "sftp://me:hunter2@host/s4"})
    assert "hunter2" not in str(told.value)
    with pytest.raises(ConfigError) as told:
        Config.from_values({"s4.coordination": "zk://me:hunter2@host:2181/s4"})
    assert "hunter2" not in str(told.value)
    without = Config.from_values({"s4.state.url": "s3://bucket/a@b:c/s4"})
    assert without[cfg.STATE_URL] == "s3://bucket/a@b:c/s4"


# --- the configuration object --------------------------------------------------------------------


def test_later_files_win_and_the_command_line_wins_over_files(tmp_path: Path) -> None:
    first = write(
        tmp_path, "s4.cluster.name = a\ns4.cluster.partitions = 2\ns4.hasher = s4\n", "1.properties"
    )
    second = write(tmp_path, "\ns4.cluster.name = b\ns4.cluster.partitions = 3\n", "2.properties")
    config = Config.load([first, second], {" s4.cluster.name ": " c "})
    assert config[cfg.CLUSTER_NAME] == "c"
    assert config[cfg.CLUSTER_PARTITIONS] == 3
    assert config[cfg.HASHER] == "s4"
    assert config.origin(cfg.CLUSTER_NAME) == "command line"
    assert config.origin(cfg.CLUSTER_PARTITIONS) == f"{second}:3"
    assert config.origin(cfg.HASHER) == f"{first}:3"
    assert config.origin(cfg.WATCHDOG_MS) == "default"


def test_families_are_read_by_what_stands_in_the_placeholders_place() -> None:
    config = Config.from_values(
        {
            "s4.cluster.east.address": "tcp://east:12000",
            "s4.cluster.far.west.address": "tcp://west:12000",
            "s4.stream.clicks.consumers": "east,far.west",
            "s4.stream.views.consumers": "",
            "s4.app.window.ms": "10",
        }
    )
    assert config.matching(cfg.CLUSTER_ADDRESS) == {
        "east": "tcp://east:12000",
        "far.west": "tcp://west:12000",
    }
    assert config.matching(cfg.STREAM_CONSUMERS) == {"clicks": ("east", "far.west"), "views": ()}
    assert config.matching(cfg.APP_PARAMETER) == {"window.ms": "10"}


def test_a_changed_copy_leaves_the_original_alone() -> None:
    original = Config.from_values({"s4.cluster.name": "east", "s4.app.colour": "blue"})
    copy = original.with_({"s4.cluster.name": "west"})
    assert original[cfg.CLUSTER_NAME] == "east"
    assert copy[cfg.CLUSTER_NAME] == "west"
    assert copy.matching(cfg.APP_PARAMETER) == {"colour": "blue"}
    with pytest.raises(ConfigError, match="unknown key"):
        original.with_({"s4.cluster.nam": "west"})


def test_items_tell_what_was_written_what_it_means_and_who_wrote_it() -> None:
    items = {
        e.name: e for e in Config.from_values({"s4.comm.timeout": "250", "s4.app.x": "1"}).items()
    }
    assert items["s4.comm.timeout"] == ("s4.comm.timeout", "250", 0.25, "code")
    assert items["s4.app.x"] == ("s4.app.x", "1", "1", "code")
    assert items["s4.watchdog.ms"] == ("s4.watchdog.ms", "100", 0.1, "default")


def test_a_family_member_that_nobody_set_has_no_origin() -> None:
    with pytest.raises(KeyError):
        Config.from_values({}).origin("s4.app.colour")


def test_a_configuration_travels_to_another_process() -> None:
    config = Config.from_values({"s4.comm.timeout": "250", "s4.stream.clicks.consumers": "east"})
    copy = pickle.loads(pickle.dumps(config))
    assert list(copy.items()) == list(config.items())
    assert copy[cfg.COMM_TIMEOUT] == 0.25


def test_importing_the_configuration_imports_no_heavy_library() -> None:
    program = (
        "import sys; sys.path.insert(0, '.'); import s4node.config.config; print(*sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"difflib", "pathlib", "structlog", "rich"} & set(output)


# --- whatever the values are ---------------------------------------------------------------------

NAMES = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=12)
LINE_OF_TEXT = (
    st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=40)
    .map(str.strip)
    .filter(lambda text: not text.endswith("\\"))
)


@settings(deadline=None)  # it writes files
@given(st.dictionaries(NAMES, LINE_OF_TEXT, max_size=6))
def test_any_line_of_text_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, parameters: dict[str, str]
) -> None:
    lines = [f"s4.app.{name} = {text}\n" for name, text in parameters.items()]
    config = load_text(tmp_path_factory.getbasetemp(), "".join(lines))
    assert config.matching(cfg.APP_PARAMETER) == parameters


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "s4.cluster.partitions": st.integers(1, 4096).map(str),
            "s4.stream.workQueueSize": st.integers(1, 10**9).map(str),
            "s4.comm.timeout": st.floats(1, 1e9).map(str),
            "s4.logger_level": st.sampled_from(["debug", "info", "warning", "error"]),
            "s4.cluster.east.address": st.integers(1, 65535).map("tcp://east:{}".format),
        },
    )
)
def test_the_texts_of_a_configuration_make_the_same_one_again(values: dict[str, str]) -> None:
    config = Config.from_values(values)
    again = Config.from_values({entry.name: entry.text for entry in config.items()})
    assert {e.name: e.value for e in again.items()} == {e.name: e.value for e in config.items()}


@given(st.sampled_from([key for key in cfg.MEMBERS if isinstance(key, Setting)]), st.data())
def test_a_key_with_one_letter_missing_is_recognized(
    setting: Setting[object], data: st.DataObject
) -> None:
    gap = data.draw(st.integers(0, len(setting.name) - 1))
    wrong = setting.name[:gap] + setting.name[gap + 1 :]
    assert f"did you mean {setting.name!r}?" in problem_with(wrong, "1")


@given(st.text(max_size=200))
def test_no_text_makes_loading_fail_other_than_with_every_mistake_placed(text: str) -> None:
    found = list(properties.parse("any.properties", text))
    lines = text.count("\n") + 1
    places = [one.line if isinstance(one, Problem) else one.number for one in found]
    assert all(place is not None and 1 <= place <= lines for place in places)
    assert places == sorted(places, key=lambda place: place or 0)


# -- set-up ---------------------------------------------------------------------------------------


def write(folder: Path, text: str, name: str = "node.properties") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def load_text(folder: Path, text: str) -> Config:
    return Config.load([write(folder, text)])


def problems_of(folder: Path, text: str) -> list[str]:
    """The mistakes in ``text``, each as ``line: what``."""
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        Config.load([path])
    lines = str(caught.value).split("\n")
    assert all(line.startswith(f"{path}:") for line in lines)
    return [line.removeprefix(f"{path}:") for line in lines]


def problem_with(key: str, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.from_values({key: text})
    return str(caught.value)
