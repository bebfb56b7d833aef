"""The requirements of an app: declared beside it, and checked on each node.

Rules
- The requirements are ``[project] dependencies`` in a ``pyproject.toml``, or else the lines of a
  ``requirements.txt``, beside the app's file. For a module of a package, they are in the nearest
  folder above it that has them, up to the folder of the package.
- A requirement whose marker does not hold here is ignored. For a requirement that is a URL, any
  version of the distribution is enough.
- s4node itself is not checked: the manifest of a package has its version.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from s4node.errors import PackageError


def declared(folders: Iterable[Path]) -> list[str]:
    """The requirements in the first of ``folders`` that declares any. Raises PackageError for
    invalid ones."""
    return next(filter(None, map(_declared_in, folders)), [])


def _declared_in(folder: Path) -> list[str]:
    project, lines = folder / "pyproject.toml", folder / "requirements.txt"
    place = project
    try:
        table = _project(project)
        if table.get("name") == "s4node":
            return []
        if "dependencies" in table:
            return [_checked(text, f"{project}: dependencies") for text in table["dependencies"]]
        place = lines
        if lines.is_file():
            return [
                _checked(text, f"{lines}:{number}")
                for number, line in enumerate(lines.read_text(encoding="utf-8").splitlines(), 1)
                if (text := line.partition(" #")[0].strip()) and not text.startswith(("#", "-"))
            ]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError) as error:
        raise PackageError(f"{place} cannot be read: {error}; correct it") from error
    return []


def _project(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    table: dict[str, Any] = tomllib.loads(text).get("project", {})
    return table


def check(what: str, requirements: list[str]) -> None:
    """Raise PackageError with all requirements of ``what`` that are missing here."""
    missing = []
    for text in requirements:
        requirement = Requirement(_checked(text, what))
        needed = requirement.marker is None or requirement.marker.evaluate()
        version = _installed(requirement.name)
        fits = bool(version) and requirement.specifier.contains(version, prereleases=True)
        if needed and requirement.name != "s4node" and not fits:
            missing.append((text, version))
    if missing:
        have = ", ".join(
            f"{text} ({f'{version} is' if version else 'not'} installed)"
            for text, version in missing
        )
        pip = " ".join(f"'{text}'" for text, _ in missing)
        raise PackageError(f"{what} needs {have}; install it on this node: pip install {pip}")


def _checked(text: object, place: str) -> str:
    try:
        return str(Requirement(str(text)))
    except InvalidRequirement as error:
        why = str(error).splitlines()[0]
        raise PackageError(
            f"{place}: {text!r} is not a requirement: {why}; write it as in 'httpx>=0.27'"
        ) from error


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
