"""``s4 certs``: makes an authority, and certificates that it signs, for a development cluster.

Rules
- An authority that is in the folder is used again, so that certificates can be added and renewed.
- Nothing is made unless all of the command line is right.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from s4node.cli import arguments as kinds
from s4node.errors import ConfigError
from s4node.net.certificates.authority import Authority
from s4node.net.certificates.identity import Holder, Identity

_MOST_DAYS = 36500


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write them")
    parser.add_argument(
        "identities",
        nargs="+",
        metavar="IDENTITY",
        help="s4://CLUSTER/ROLE/NAME, the role being node, producer, reader or operator; several "
        "with commas for one who is in several clusters",
    )
    parser.add_argument(
        "--days",
        type=kinds.count,
        default=365,
        metavar="N",
        help="validity in days (default %(default)s)",
    )
    parser.set_defaults(function=certs)


def certs(folder: Path, identities: Sequence[str], days: int) -> int:
    if days > _MOST_DAYS:
        raise ConfigError(f"--days {days} is more than 100 years; give at most {_MOST_DAYS}")
    wanted = [given.split(",") for given in identities]
    for given in wanted:
        try:
            for uri in given:
                Identity.parse(uri)
            Holder.of(given, 0, 0.0)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    authority = Authority.in_folder(folder)
    for given in wanted:
        made = authority.issue(given, days)
        print(f"{made.name}\t{made.serial:X}\t{folder / made.name / 'tls.properties'}")
    return 0
