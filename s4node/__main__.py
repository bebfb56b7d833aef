"""``python -m s4node`` is the ``s4`` command."""

from s4node.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
