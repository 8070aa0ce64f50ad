"""`notary init`: a commented configuration to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from replica.cli.common import CONFIG_NAME, load, make_table, out, run
from replica.cli.install_steps import STEPS, Step, progress
from replica.cli.profiles import Profile, ProfileOption
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

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
_LOGS[Profile.EMBEDDED] = _LOGS[Profile.RAFT]
EXAMPLE: dict[str, Any] = {
    "data_dir": "data",
    "notary_key_file": "notary.key",
    "endpoint": {"port": 8080},
    "replicas": [
        {
            "name": f"r{number}",
            "host": f"notary-{number}.example",
            "api_port": 8081,
            "proxy_port": 8084,
            "health_port": 8082,
        }
        for number in (1, 2, 3)
    ],
    "database": {"conninfo": f"{_DATABASE} user=notary", "password_file": "database.password", "scope": "notary"},
    "log": _LOGS[Profile.REFERENCE],
    "haproxy": {"sources": ["192.0.2.0/24"]},  # as the hosts: addresses of examples, to be replaced
    "api": {
        "tls": {"certificate_file": "api.crt", "key_file": "api.key"},
        "tokens": {"keys_file": "issuer.pem", "audience": "notary"},
    },
}
_ISSUER = "the public key of who issues the callers' tokens (issuer.pem)"
_NODES = "the API's and the log node's certificates and keys (api.crt, api.key, log.crt, log.key; chmod 600)"
_BESIDE = {
    Profile.RAFT: f"the passwords, {_NODES}",
    Profile.EMBEDDED: _NODES,
    Profile.REFERENCE: "the passwords, the API's certificate and key (api.crt, api.key; chmod 600), the brokers' CA"
    " (kafka-ca.pem)",
    Profile.POSTGRES: "the passwords, the API's certificate and key (api.crt, api.key; chmod 600)",
}
_NODES_MAKE_LOG = "notary log-node on each machine, --new-group on the first; notary log create --officer ..."
_MAKE_LOG = {
    Profile.RAFT: _NODES_MAKE_LOG,
    Profile.EMBEDDED: _NODES_MAKE_LOG,
    Profile.REFERENCE: "notary topic create --officer ...; notary topic access",
    Profile.POSTGRES: "notary log create --owner ... --officer ...; notary log roles",
}
_ONLY_WITH_DATABASE = ("Roles and database", "Tables and grants")  # steps
_MARKS = {True: "[green]done[/]", False: "[bold red]missing[/]", None: "[dim]not seen[/]"}

CheckOption = Annotated[
    bool, typer.Option("--check", help="Write nothing; show which step of the installation is done.")
]


def example(profile: Profile) -> dict[str, Any]:
    """The values of a configuration to start from."""
    from replica.config.model import WITHOUT_DATABASE

    own: Mapping[str, Any] = WITHOUT_DATABASE if profile is Profile.EMBEDDED else {}
    return EXAMPLE | {"log": _LOGS[profile]} | dict(own)


def write_config(
    folder: FolderArgument = Path(), profile: ProfileOption = Profile.REFERENCE, check: CheckOption = False
) -> None:
    """Write a commented configuration: every setting with its unit, its default and what it is for.

    An existing file is never overwritten. It then lists the steps of an installation. With --check it shows which of
    them are done, by what the doctor finds; code 1 while one is missing.
    """
    from replica.config.file import render_config
    from replica.notary.errors import ConfigError

    path = folder / CONFIG_NAME
    if check:
        raise typer.Exit(EXIT_OK if _show_progress(path) else EXIT_FAILED)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(render_config(example(profile), TITLE))
    except FileExistsError:
        raise ConfigError(f"{path} exists already; nothing was written. How far it is: notary init --check") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    out.print(f"[bold]{path}[/] was written. The steps of an installation, each in docs/install.md:")
    without = _ONLY_WITH_DATABASE if profile is Profile.EMBEDDED else ()
    for number, step in enumerate((step for step in STEPS if step.name not in without), 1):
        out.print(f"{number:4}. {step.name:20} {_how(step, profile)}", markup=False)
    out.print(f"Beside {path}: {_BESIDE[profile]}, and {_ISSUER}.", markup=False)
    out.print("Which of them are done: [bold]notary init --check[/]")


def _how(step: Step, profile: Profile) -> str:
    return _MAKE_LOG[profile] if step.name == "Topic" else step.how


def _show_progress(path: Path) -> bool:
    """Print each step and what it lacks. Whether no step is known to be missing."""
    from replica.doctor.checks import examine, refused_configuration
    from replica.doctor.look import look
    from replica.notary.errors import ConfigError

    try:
        findings = examine(run(look(load(path))))
    except ConfigError as error:
        findings = refused_configuration(error.detail)
    found = list(progress({one.check: one for one in findings}))
    table = make_table("", "step", "what to do")
    for one in found:
        text = " ".join(one.text.split())  # a driver's may have several lines
        table.add_row(_MARKS[one.done], one.step.name, escape(text or ("" if one.done else one.step.how)))
    out.print(table)
    return all(one.done is not False for one in found)
