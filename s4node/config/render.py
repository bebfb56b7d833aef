"""Renders the list of keys as ``default.s4.comm.properties``, which documents them. Pure."""

from __future__ import annotations

import textwrap
from typing import Any

from s4node.config.key import ConfigKey, Pattern, StageKey
from s4node.config.settings import KEYS

_HEADING = """\
# Every key of s4node's configuration, with its default.
#
# This file is rendered from s4node/config/settings.py; change it there. Your
# own files need only the keys that differ. A later file wins over an earlier
# one, and -p key=value wins over files.
#
# Lines are key = value; a line that begins with # or ! is a comment, and \\ at
# the end of a line joins the next one to it.
"""


def render() -> str:
    """The text of ``default.s4.comm.properties``."""
    blocks = [_HEADING]
    section = ""
    for key in KEYS:
        if key.section != section:
            section = key.section
            blocks.append(f"# {f' {section} ':-^76}\n")
        blocks.append(_rendered(key))
    return "\n".join(blocks)


def _rendered(key: ConfigKey[Any]) -> str:
    comments = textwrap.wrap(key.doc, 76) + textwrap.wrap(f"Value: {key.kind.noun}.", 76)
    if isinstance(key, Pattern):
        comments += [f"Key: {key.name}; for example", f"{key.example} = {key.text}"]
        return "".join(f"# {comment}\n" for comment in comments)
    settings = [key]
    if isinstance(key, StageKey):
        settings = [each.setting for each in key.of.values()]
        first = next(iter(key.of.values())).pattern
        comments += ["For one stream, for example:", f"{first.example} = {key.text}"]
    assignments = "".join(f"{each.name} = {each.text}".strip() + "\n" for each in settings)
    return "".join(f"# {comment}\n" for comment in comments) + assignments
