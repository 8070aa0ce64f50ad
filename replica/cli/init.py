"""`notary init`: a commented configuration to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from replica.cli.common import CONFIG_NAME, out
from replica.cli.profiles import Profile, ProfileOption

FolderArgument = Annotated[Path, typer.Argument(help="Folder to write notary.toml into; made if it is not there.")]

TITLE = """Configuration of a notary participant. One file serves all its replicas; each gets its name from its command.
A line that begins with '#' and a name shows a default; take the '#' away to change it. Relative paths count from this \
file's folder. An environment variable goes before the file: NOTARY_ELECTION__LEASE_S=4 sets lease_s in [election]. \
Secrets are files, named here, never values.
After a change: notary config check"""
_DATABASE = (
    "host=db-1.example,db-2.example dbname=notary target_session_attrs=read-write sslmode=verify-full"
    " sslrootcert=/etc/notary/database-ca.pem"
)
_LOGS: dict[Profile, dict[str, Any]] = {
    Profile.REFERENCE: {
        "kafka": {
            "bootstrap_servers": "kafka-1.example:9093,kafka-2.example:9093,kafka-3.example:9093",
            "security": {"protocol": "SSL", "ca_file": "kafka-ca.pem"},
        }
    },
    Profile.POSTGRES: {
        "kind": "postgres",
        "postgres": {"conninfo": f"{_DATABASE} user=notary", "password_file": "database.password"},
    },
    Profile.RAFT: {
        "kind": "raft",
        "raft": {
            "group": "notary",
            "nodes": ",".join(f"r{number}=notary-{number}.example:7400" for number in (1, 2, 3)),
            "tls": {"ca_file": "log-ca.pem", "certificate_file": "log.crt", "key_file": "log.key"},
        },
    },
}
EXAMPLE: dict[str, Any] = {
    "data_dir": "data",
    "notary_key_file": "notary.key",
    "endpoint": {"port": 8080},
    "replicas": [
        {
            "name": f"r{number}",
            "host": f"notary-{number}.example",
            "api_port": 8081,
            "health_port": 8082,
            "admin_port": 8083,
        }
        for number in (1, 2, 3)
    ],
    "database": {"conninfo": f"{_DATABASE} user=notary", "password_file": "database.password", "scope": "notary"},
    "log": _LOGS[Profile.REFERENCE],
    "api": {
        "registry_path": "parties.toml",
        "tls": {"certificate_file": "api.crt", "key_file": "api.key"},
    },
}
_BESIDE = {
    Profile.RAFT: "the API's and the log node's certificates and keys (api.crt, api.key, log.crt, log.key; chmod 600)",
    Profile.REFERENCE: "the API's certificate and key (api.crt, api.key; chmod 600), the brokers' CA (kafka-ca.pem)",
    Profile.POSTGRES: "the API's certificate and key (api.crt, api.key; chmod 600)",
}
_MAKE_LOG = {
    Profile.RAFT: "notary log-node --name r1           on each machine; on the first, once, with --new-group; then\n"
    "     notary log create                 the request log, with all three as its members",
    Profile.REFERENCE: "notary topic create                the request log, with the settings that safety rests on",
    Profile.POSTGRES: "notary log create --owner ...      the request log; then run what notary log roles prints",
}
_NEXT = """Next:
  1. put your addresses into {path}, and the database role's password into a file (chmod 600)
     beside it {beside}
  2. notary keys create notary.key      the notary's signing key; copy it to every replica's machine
  3. register parties in parties.toml   "O=Bank A,L=London,C=GB" = ["<public key>"] under [parties]
  4. {make_log}
  5. notary store migrate               the shared database's tables
  6. notary config check                what a fail-over costs, step by step
  7. notary replica --name r1           on each machine, under a supervisor that restarts it
  8. notary haproxy render              the endpoint in front"""


def example(profile: Profile) -> dict[str, Any]:
    """The values of a configuration to start from."""
    return EXAMPLE | {"log": _LOGS[profile]}


def write_config(folder: FolderArgument = Path(), profile: ProfileOption = Profile.REFERENCE) -> None:
    """Write a commented configuration: every setting with its unit, its default and what it is for.

    An existing file is never overwritten.
    """
    from replica.config.file import render_config
    from replica.notary.errors import ConfigError

    path = folder / CONFIG_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(render_config(example(profile), TITLE))
    except FileExistsError:
        raise ConfigError(f"{path} exists already; nothing was written") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    out.print(f"[bold]{path}[/] was written.")
    out.print(_NEXT.format(path=path, beside=_BESIDE[profile], make_log=_MAKE_LOG[profile]), markup=False)
