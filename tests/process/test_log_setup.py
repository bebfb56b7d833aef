"""The promises of logging: all on stderr, for people at a terminal and for programs elsewhere."""

from __future__ import annotations

import io
import json
import logging
import re
from contextlib import redirect_stderr
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from harness import ROOT

from s4node import clocks
from s4node.errors import ConfigError
from s4node.logger import get_logger
from s4node.process.log_setup import configure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def test_without_a_terminal_a_message_is_one_json_object_a_line() -> None:
    (line,) = lines_of(listening)
    assert datetime.fromisoformat(line.pop("timestamp")).utcoffset() == timedelta(0)
    assert line == {
        "event": "listening",
        "level": "info",
        "address": "tcp://127.0.0.1:12000",
        "partitions": 4,
    }


def test_whatever_a_message_holds_stays_in_its_line() -> None:
    (line,) = lines_of(lambda: structlog.get_logger().info("two\nlines", key=b"\xff"))
    assert line["event"] == "two\nlines"
    assert line["key"] == r"b'\xff'"


def test_a_message_is_for_people_at_a_terminal() -> None:
    text = text_of(listening, stderr=Terminal())
    assert "\x1b[" in text
    assert "listening" in text


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = text_of(listening, stderr=Terminal())
    assert "\x1b[" not in text
    assert "[info     ] listening" in text


def test_console_can_be_asked_for_anywhere_and_then_has_no_colors() -> None:
    text = text_of(listening, format="console")
    assert text.endswith(
        "[info     ] listening                      address=tcp://127.0.0.1:12000 partitions=4\n"
    )


def test_json_can_be_asked_for_at_a_terminal() -> None:
    assert json.loads(text_of(listening, format="json", stderr=Terminal()))["partitions"] == 4


def test_nothing_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert text_of(listening)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_messages_below_the_level_are_left_out(level: str, told: list[str]) -> None:
    def say() -> None:
        log = structlog.get_logger()
        log.debug("one")
        log.info("two")
        log.warning("three")
        log.error("four")

    assert [line["level"] for line in lines_of(say, level)] == told


def test_a_disabled_message_is_not_even_put_together() -> None:
    class Costly:
        def __repr__(self) -> str:
            raise AssertionError("nobody wanted to see this")

    def say() -> None:
        structlog.get_logger().info("batch %s", Costly(), batch=Costly())

    assert text_of(say, "warning") == ""


def test_an_unknown_level_and_format_are_refused_together() -> None:
    with pytest.raises(ConfigError) as caught:
        configure("chatty", "xml")
    assert str(caught.value).split("\n") == [
        (
            "code: s4.logger_level = 'chatty' is not one of debug, info, warning, error; "
            "write e.g. info"
        ),
        "code: s4.logger_format = 'xml' is not one of auto, console, json; write e.g. auto",
    ]


@pytest.mark.parametrize("chosen", ["json", "console"])
def test_a_traceback_comes_without_local_variables(chosen: str) -> None:
    def say() -> None:
        secret = "47" + "11"
        try:
            raise ValueError(f"a secret of {len(secret)} letters")
        except ValueError:
            structlog.get_logger().exception("handler raised")

    text = text_of(say, format=chosen)
    assert "ValueError: a secret of 4 letters" in text
    assert "4711" not in text.partition("Traceback")[2]


def test_context_travels_with_every_message() -> None:
    structlog.contextvars.bind_contextvars(app="counter")
    (line,) = lines_of(listening)
    assert line["app"] == "counter"


def test_warnings_of_libraries_come_out_in_the_same_stream() -> None:
    def say() -> None:
        library = logging.getLogger("a.library")
        library.warning("disk is %d%% full", 93)
        library.log(35, "between warning and error")
        library.info("left out")

    first, second = lines_of(say)
    assert first["event"] == "disk is 93% full"
    assert (first["level"], first["logger"]) == ("warning", "a.library")
    assert second["level"] == "warning"


def test_libraries_tell_only_errors_where_the_level_is_error() -> None:
    def say() -> None:
        logging.getLogger("a.library").warning("left out")
        logging.getLogger("a.library").error("told")

    assert [line["event"] for line in lines_of(say, "error")] == ["told"]


def test_a_librarys_traceback_is_part_of_its_line() -> None:
    def say() -> None:
        try:
            raise OSError("disk is gone")
        except OSError:
            logging.getLogger("a.library").exception("failed")

    (line,) = lines_of(say)
    assert line["exception"].endswith("OSError: disk is gone")


def test_a_broken_log_message_of_a_library_is_written_as_far_as_possible() -> None:
    def say() -> None:
        # pytest has a handler of its own on the root logger, which would fail the test here
        logging.getLogger().handlers[:] = logging.getLogger().handlers[-1:]
        logging.getLogger("a.library").warning("%d files", "many")

    (line,) = lines_of(say)
    assert line["event"] == "%d files ('many',)"


def test_configuring_again_does_not_double_the_lines_of_libraries() -> None:
    def say() -> None:
        configure()
        logging.getLogger("a.library").warning("once")

    assert len(lines_of(say)) == 1


def test_a_logger_follows_stderr_where_it_goes() -> None:
    log = structlog.get_logger()
    with redirect_stderr(io.StringIO()) as first:
        configure()
        log.info("one")
    first.close()
    with redirect_stderr(io.StringIO()) as second:
        log.info("two")
    assert json.loads(second.getvalue())["event"] == "two"


# --- in programs that configure nothing, or something else ----------------------------------------


def test_without_configuration_lines_go_to_stderr_and_structlog_is_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = get_logger("s4node.net")
    log.debug("too little")
    log.info("connection lost", address="tcp://127.0.0.1:12000")
    out, err = capsys.readouterr()
    line = json.loads(err)
    assert (line["event"], line["level"]) == ("connection lost", "info")
    assert out == ""
    assert not structlog.is_configured()


def test_a_program_s_own_configuration_holds_from_when_it_is_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = get_logger("s4node.net")
    log.info("before")
    said: list[dict[str, Any]] = []

    def keep(_logger: object, _method: str, event: dict[str, Any]) -> str:
        said.append(event)
        return "rendered"

    structlog.configure(processors=[keep])
    log.info("after", partitions=4)
    assert said == [{"event": "after", "partitions": 4}]
    out, err = capsys.readouterr()
    assert json.loads(err)["event"] == "before"
    assert out == "rendered\n"


def test_loggers_are_found_by_name_where_a_program_uses_the_standard_library(
    caplog: pytest.LogCaptureFixture,
) -> None:
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    with caplog.at_level(logging.WARNING, "s4node.net"):
        get_logger("s4node.net").info("too little")
        get_logger("s4node.net").warning("sending failed")
    assert [(record.name, record.message) for record in caplog.records] == [
        ("s4node.net", "sending failed")
    ]


def test_loggers_are_called_after_the_first_folder_of_their_module() -> None:
    package = ROOT / "s4node"
    named = {
        (path.relative_to(package).parts[0], name)
        for path in package.glob("*/**/*.py")
        for name in re.findall(r"get_logger\((.*)\)$", path.read_text("utf-8"), re.MULTILINE)
        if path.name != "log_setup.py"  # its lines are those of libraries
    }
    assert len(named) > 4
    assert [each for each in named if each[1] != f'"s4node.{each[0]}"'] == []


def test_lines_of_one_kind_are_bounded_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(clocks, "steady", lambda: now)

    def say() -> None:
        nonlocal now
        for n in range(80):
            get_logger("s4node.net").warning("bad frame", n=n)
            structlog.get_logger("app").info("an app's own line", n=n)
        get_logger("s4node.net").warning("another kind")
        now += 1
        get_logger("s4node.net").warning("bad frame", n=80)

    lines = lines_of(say)
    ours = [line for line in lines if line["event"] == "bad frame"]
    assert [line["n"] for line in ours] == [*range(50), 80]
    assert ours[-1]["left_out"] == 30
    assert sum(line["event"] == "another kind" for line in lines) == 1
    assert sum(line["event"] == "an app's own line" for line in lines) == 80


# -- set-up ---------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.contextvars.clear_contextvars()


def text_of(
    say: Callable[[], object],
    level: str = "info",
    format: str = "auto",  # noqa: A002 - as configure has it
    stderr: io.StringIO | None = None,
) -> str:
    """The text on stderr once logging is configured and ``say`` has logged."""
    with redirect_stderr(stderr or io.StringIO()) as stream:
        configure(level, format)
        say()
    return stream.getvalue()


def lines_of(say: Callable[[], object], level: str = "info") -> list[dict[str, Any]]:
    return [json.loads(line) for line in text_of(say, level).splitlines()]


def listening() -> None:
    structlog.get_logger().info("listening", address="tcp://127.0.0.1:12000", partitions=4)
