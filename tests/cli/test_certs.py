"""``s4 certs``: an authority and certificates for a development cluster."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from s4node import Credentials
from s4node.cli.main import main
from s4node.config.config import Config

NODE, BANK = "s4://demo/node/node1", "s4://demo/producer/bank"


def certs(folder: Path, *identities: str) -> int:
    return main(["certs", str(folder), *identities])


def credentials(folder: Path, name: str) -> Credentials:
    found = Credentials.configured(Config.load([folder / name / "tls.properties"], {}))
    assert found is not None
    return found


def test_one_command_makes_an_authority_and_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    both = "s4://outside/node/gate,s4://demo/producer/gate"
    assert certs(folder, NODE, BANK, both) == 0
    printed = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _, _ in printed] == ["node1", "bank", "gate"]
    gate = credentials(folder, "gate").holder
    assert gate.roles == {"outside": "node", "demo": "producer"}
    assert f"{gate.serial:X}" == printed[2][1]


def test_an_authority_and_certificates_are_for_their_own_user_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certs(tmp_path / "certs", NODE)
    assert "PRIVATE" not in capsys.readouterr().out
    for each in (tmp_path / "certs", *(tmp_path / "certs").rglob("*")):
        assert stat.S_IMODE(each.stat().st_mode) == (0o700 if each.is_dir() else 0o600), each


def test_certificates_are_added_and_renewed_by_the_same_authority(tmp_path: Path) -> None:
    certs(tmp_path, NODE)
    authority = (tmp_path / "authority.pem").read_bytes()
    first = credentials(tmp_path, "node1").holder.serial
    assert certs(tmp_path, NODE, BANK) == 0
    assert (tmp_path / "authority.pem").read_bytes() == authority
    node = credentials(tmp_path, "node1")
    node.refresh()
    assert node.holder.serial != first


def test_nothing_is_made_if_an_identity_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(tmp_path / "certs", NODE, "s4://demo/king/bank") != 0
    assert "s4://demo/king/bank has the role 'king'" in capsys.readouterr().err
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["till"], "till is not an identity; write s4://CLUSTER/ROLE/NAME"),
        ([f"{BANK},till"], "till is not an identity; write s4://CLUSTER/ROLE/NAME"),
        ([BANK, "--days", "99999999"], "--days 99999999 is more than 100 years"),
    ],
)
def test_what_no_certificate_can_have_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    assert certs(tmp_path / "certs", *more) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "certs").exists()
