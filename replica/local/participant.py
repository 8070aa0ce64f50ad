"""The files of a local cluster's participant, besides its servers' data: keys, parties, password, configuration.

They are made when absent and then kept, so that a restarted cluster is the same notary for the same parties.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ledger_api.client.signing import Party
from replica.acting.party_file import PARTY_FILE, write_party_file
from replica.active.signer import create_key, load_notary_signer
from replica.config.file import render_config
from replica.notary.errors import ConfigError
from replica.notary.secret_files import open_not_for_others
from replica.notary.untrusted import parse_toml

CONFIG_NAME = "notary.toml"
DATABASE = "notary"  # where replicas share one
OWNER, ROLE, READER = "notary_owner", "notary", "notary_api"  # who migrates; what cores and front ends log in as
REPLICAS_FOLDER = "replicas"  # of the replicas' own data
OPERATOR = "local"  # who operates a cluster for which nobody else is configured
PARTIES = "parties"  # the folder of the parties' keys
_TITLE = (
    "A local cluster: all of it on loopback, for development. Written at each start: addresses change, other settings "
    "that are set here are kept."
)


def party_name(number: int) -> str:
    """The X.500 name of a cluster's party, from 1."""
    return f"O=Bank {number},L=London,C=GB"


class ParticipantFiles:
    """The files, all in one folder; those with a secret have mode 0600."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config_path = folder / CONFIG_NAME
        self._key_path = folder / "notary.key"
        self.party_file = folder / PARTY_FILE

    def password(self, role: str) -> str:
        """The password of a role of the database."""
        path = self._password_path(role)
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(24))
        return path.read_text()

    def password_file(self, role: str) -> str:
        """The file with that password, as the configuration names it."""
        return self._password_path(role).name

    def pgpass(self, role: str) -> Path:
        """A file by which libpq finds that password."""
        path = self._folder / f"{role}.pgpass"
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"*:*:*:{role}:{self.password(role)}\n")
        return path

    def notary_key(self) -> bytes:
        """The public key that the notary signs with: that of the configuration, else a new one."""
        path = self._folder / self.settings().get("notary_key_file", self._key_path.name)
        return load_notary_signer(path).public_key if path.exists() else create_key(path)

    def officer(self) -> dict[str, str]:
        """The settings of the one operator of a cluster for which nobody else is configured; also the first officer."""
        key_path, people_path = self._folder / "officer.key", self._folder / "operators.toml"
        if not people_path.exists():
            key = load_notary_signer(key_path).public_key if key_path.exists() else create_key(key_path)
            with open_not_for_others(people_path, "wb") as file:
                file.write(f'[[operators]]\nname = "{OPERATOR}"\npublic_key = "{key.hex()}"\n'.encode())
        return {"key_file": key_path.name, "keys_file": people_path.name}

    def has_key_file(self, values: Mapping[str, Any]) -> bool:
        """Whether the notary's key is in a file, by the configuration and what a start adds to it."""
        return not {"pkcs11", "kms"} & {*self.settings(), *values}

    def parties(self, count: int, ledger_id: bytes) -> list[Party]:
        """Make so many parties of a ledger, each with its own key. Those that were added by hand stay registered."""
        parties = [
            _party(party_name(number), ledger_id, self._folder / PARTIES / f"bank-{number}.key")
            for number in range(1, count + 1)
        ]
        registered = _read_toml(self.party_file).get("parties", {})
        for party in parties:
            keys = registered.setdefault(party.name, [])
            if party.public_key.hex() not in keys:
                keys.append(party.public_key.hex())
        write_party_file(self.party_file, registered)
        return parties

    def settings(self) -> dict[str, Any]:
        """The values in the configuration of the last start; empty when there was none."""
        return _read_toml(self.config_path)

    def write_config(self, values: Mapping[str, Any], roles: tuple[str, str] | None) -> None:
        """Write the configuration: these values override the last start's, which override a new cluster's.

        So a rotated key goes on signing. `roles`: what replicas log in to the database as, and what their front ends
        do, which only read; None: there is no database.
        """
        own: dict[str, Any] = {
            "data_dir": REPLICAS_FOLDER,
            "api": {"rate_per_s": 0},  # measured and attacked at full speed
        }
        if roles is not None:
            role, reader = roles
            own["database"] = {
                "password_file": self.password_file(role),
                "reader_user": reader,
                "reader_password_file": self.password_file(reader),
            }
        before = self.settings()
        if self.has_key_file(values):
            own["notary_key_file"] = self._key_path.name
        people = {"key_file", "keys_file"}
        if not people & {*before.get("operators", {}), *values.get("operators", {})}:
            own["operators"] = self.officer()
        text = render_config(merged(merged(own, before), values), _TITLE)
        partial = self.config_path.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(self.config_path)

    def _password_path(self, role: str) -> Path:
        return self._folder / f"{role}.password"


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge both, table by table. Where both have a value, `above` counts."""
    result = dict(below)
    for name, value in above.items():
        under = result.get(name)
        result[name] = merged(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return result


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _party(name: str, ledger_id: bytes, path: Path) -> Party:
    """The party with the key in a file, which is made when there is none."""
    if not path.exists():
        create_key(path)
    return Party.from_file(name, ledger_id, path)
