"""The promises of the rendered file: every key, with its documentation, and its default."""

from __future__ import annotations

from harness import ROOT

from s4node.config.config import Config
from s4node.config.render import render


def test_the_file_at_the_top_level_is_the_rendered_one() -> None:
    assert RENDERED.read_text(encoding="utf-8") == render(), (
        "write the text of s4node.config.render.render() to default.s4.comm.properties"
    )


def test_loading_the_rendered_file_gives_the_defaults() -> None:
    loaded = [(e.name, e.text, e.value) for e in Config.load([RENDERED]).items()]
    assert loaded == [(e.name, e.text, e.value) for e in Config.from_values({}).items()]


def test_every_setting_stands_in_the_rendered_file_itself() -> None:
    origins = [entry.origin for entry in Config.load([RENDERED]).items()]
    assert all(origin.startswith(f"{RENDERED}:") for origin in origins)


def test_a_key_is_rendered_with_its_documentation_and_unit() -> None:
    assert render().endswith(
        """
# The least severe level that is logged.
# Value: one of debug, info, warning, error.
s4.logger_level = info

# console is for people, json is one JSON object per line. auto is console if
# stderr is a terminal, and json otherwise.
# Value: one of auto, console, json.
s4.logger_format = auto
"""
    )


def test_the_rendered_lines_fit_a_terminal() -> None:
    assert max(map(len, render().splitlines())) <= 78


def test_a_family_of_keys_is_rendered_as_a_commented_example() -> None:
    assert """
# Value: address tcp://host:port, port 1 to 65535.
# Key: s4.cluster.<cluster>.address; for example
# s4.cluster.east.address = tcp://127.0.0.1:12001
""" in render()


# -- set-up ---------------------------------------------------------------------------------------


RENDERED = ROOT / "default.s4.comm.properties"
