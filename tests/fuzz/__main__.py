"""``python -m fuzz``: fuzzes the decoders, ``--inputs`` inputs for each, guided by coverage.

It needs atheris, and says SKIPPED without it. What is found stops it, and is printed in hex; put it
into the target's file in ``corpus`` together with the fix. ``--keep`` adds the inputs that reached
something new.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fuzz.saved import add, saved

_LONGEST = 4096
_SLOW_PART = 200  # one input in so many, for targets that write a file for each


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument(
        "--seconds", type=float, help="begin no target after that, and give each a quarter of it"
    )
    parser.add_argument("--turn", type=int, default=0, help="begin with another target")
    parser.add_argument("--target", action="append", help="all, if not given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--found", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        version = ".".join(map(str, sys.version_info[:2]))
        print(f"SKIPPED: fuzzing needs atheris, which is not there for this Python {version}")
        return 0
    if options.one:
        _fuzz_one(options, Path(options.found))
    from fuzz.targets import SLOW, TARGETS

    names = options.target or list(TARGETS)
    begun = time.monotonic()
    for turn in range(options.turn, options.turn + len(names)):
        name = names[turn % len(names)]
        if options.seconds and time.monotonic() - begun > options.seconds:
            print(f"{options.seconds:g} s are over; {name} and what follows had no turn")
            return 0
        inputs = max(1, options.inputs // _SLOW_PART if name in SLOW else options.inputs)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder, "found")
            found.mkdir()
            command = [sys.executable, "-m", "fuzz", "--one", name, "--inputs", str(inputs)]
            command += ["--seed", str(options.seed), "--found", str(found)]
            if options.seconds:
                command += ["--seconds", str(options.seconds / 4)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            seconds = time.monotonic() - began
            if done.returncode:
                print(done.stdout, done.stderr[-8000:], file=sys.stderr)
                for crash in sorted(Path(folder).glob("stopped-*")):
                    print(f"{name} {crash.read_bytes().hex()}", file=sys.stderr)
                return 1
            new = [each.read_bytes() for each in sorted(found.iterdir())]
            if options.keep:
                add(name, new)
            most = "at most " if options.seconds else ""
            print(f"{name}: {most}{inputs} inputs in {seconds:.1f} s, {len(new)} new", flush=True)
    return 0


def _fuzz_one(options: argparse.Namespace, found: Path) -> None:
    """Fuzz a target in this process, which ends."""
    name = options.one
    import atheris

    with atheris.instrument_imports(include=["s4node"]):
        from fuzz.targets import TARGETS
    begun = found.parent / "saved"
    begun.mkdir()
    for number, data in enumerate(saved(name)):
        (begun / str(number)).write_bytes(data)
    flags = [f"-runs={options.inputs}", f"-seed={options.seed}", f"-max_len={_LONGEST}"]
    flags += ["-rss_limit_mb=0"]
    if options.seconds:
        flags += [f"-max_total_time={max(1, round(options.seconds))}"]
    flags += [f"-artifact_prefix={found.parent}/stopped-", "-verbosity=0", "-timeout=10"]
    atheris.Setup([sys.argv[0], *flags, str(found), str(begun)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
