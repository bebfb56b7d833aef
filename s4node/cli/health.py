"""``s4 health``: asks whether a node answers. Cheap, for health checks: no trio, no nng."""

from __future__ import annotations

import argparse
import sys

from s4node.cli.arguments import DEFAULT_ADDRESS, setting_options, timeout_option
from s4node.config.config import Config
from s4node.errors import ConnectionRefused
from s4node.net.certificates.credentials import Credentials
from s4node.net.transport.probe import look


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        nargs="?",
        default=DEFAULT_ADDRESS,
        metavar="ADDRESS",
        help="where the node listens (default %(default)s)",
    )
    timeout_option(parser, "its answer", 3.0)
    setting_options(parser, file="property file with s4.tls.certificate and so on")
    parser.set_defaults(function=health)


def health(address: str, timeout: float, config: Config) -> int:
    check(address, timeout, Credentials.configured(config))
    print(f"{address} answers", file=sys.stderr)
    return 0


def check(address: str, timeout: float, credentials: Credentials | None = None) -> None:
    """Return if a node answers at ``address`` within ``timeout`` seconds.

    Raises ConnectionRefused with what happened instead, or ConfigError for an invalid address.
    """
    try:
        problem = look(address, timeout, credentials)
    except TimeoutError:
        raise ConnectionRefused(
            f"nothing answers at {address} within {timeout:g} s; the node hangs, is overloaded or "
            f"cannot be reached: see its log, or set a longer --timeout"
        ) from None
    except OSError as error:
        raise ConnectionRefused(
            f"no node can be reached at {address}: {error.strerror or error}; "
            f"start one there, or give its s4.listener.address"
        ) from error
    if problem:
        raise ConnectionRefused(f"what listens at {address} {problem}")
