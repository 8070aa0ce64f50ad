"""`notary config`: check the configuration, and show each effective value with its origin."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, make_table, out, print_json, run

if TYPE_CHECKING:
    from ha.raft.settings import RaftSettings
    from replica.cli.budget import Budget
    from replica.config.file import Setting
    from replica.config.model import Config
    from replica.health import ReplicaHealth
    from replica.log.promises import Promise

app = typer.Typer(help="Check and show a participant's configuration.", no_args_is_help=True)

ROUND_TRIP_MS = 5  # between log nodes, as assumed for their outage
DEFAULT, FILE, ENVIRONMENT = "default", "file", "environment"
_CONNECTION_STRINGS = {("database", "conninfo"), ("log", "postgres", "conninfo")}


@app.command()
def check(config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Validate the configuration and the files it names, print what an answer rests on, and a fail-over's time budget.

    The steps of an activation are measured ones when a replica is active, else they are left out and said to be.
    """
    from ledger_api.client.retry import RetryPolicy
    from replica.cli.budget import end_seen_by, failover_budget, faults_of
    from replica.log.promises import promise

    path = find_config(config)
    settings = load(path)
    _check_files(settings)
    active = run(_active(settings))
    measured = None if active is None else active.activation_steps_s
    server = settings.election.kind == "database"  # which frees the lock of a silent session
    lease = ((active and active.lock_lease) or settings.shared_database().lease(settings.election)) if server else None
    haproxy, log = settings.haproxy_settings(), settings.log.settings
    seen = end_seen_by(log)
    budgets = [
        failover_budget(settings.election, haproxy, RetryPolicy(), fault, measured, lease=lease, seen=seen)
        for fault in faults_of(log)
    ]
    if as_json:
        rules = [asdict(rule) for rule in settings.election.rules()]
        document = {
            "config": str(path),
            "valid": True,
            "promise": promise(log)._asdict(),
            "warnings": warnings(settings),
            "rules": rules,
            "stalls": _stalls(settings),
            "budgets": [_document(each) for each in budgets],
        }
        print_json(document | _log_document(settings))
        return
    out.print(f"[bold green]{path} is valid[/]: {len(settings.replicas)} replicas, standby = {settings.core.standby}\n")
    _print_promise(promise(log), warnings(settings))
    _print_rules(settings)
    _print_log(settings)
    for budget in budgets:
        _print(budget)
    if lease is not None and not lease.verified:
        out.print(f"The server's lease is not verified: {lease.detail}.")
    if measured is None:
        out.print("No replica of this configuration is active, so the steps of an activation are not in the sums.")
    if settings.serving == "all":
        out.print(
            "All replicas serve: only what the holder of the lock does alone waits so long. Clients of the lost replica"
            " are answered by the others, once HAProxy has given it up."
        )
    if settings.core.standby == "disconnected":
        out.print(
            "Passives stay away from the log: reading it grows with what they have missed, and is not in the sums."
        )


@app.command()
def show(config: ConfigChoice = None, as_json: JsonOption = False) -> None:
    """Show the effective value of every setting, and where it comes from: default, file or environment."""
    path = find_config(config)
    rows = list(effective(load(path), tomllib.loads(path.read_text()), os.environ))
    if as_json:
        print_json({"config": str(path), "settings": [_row_document(*row) for row in rows]})
        return
    table = make_table("setting", "value", "from")
    styles = {DEFAULT: "dim", FILE: "white", ENVIRONMENT: "bold yellow"}
    for name, value, origin in rows:
        table.add_row(name, _text(value), origin, style=styles[origin])
    out.print(table)
    out.print(f"\nfile: {path}; NOTARY_ELECTION__LEASE_S=4 in the environment, for example, goes before it")


@app.command()
def reference() -> None:
    """Print every setting with its unit, default and reason, as Markdown: docs/settings.md is this."""
    from replica.config.file import render_reference

    typer.echo(render_reference(), nl=False)


def effective(
    config: Config, in_file: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[tuple[str, object, str]]:
    """Name, value and origin of every setting; passwords in a connection string are left out."""
    from replica.config.file import tables

    variables = {name.upper() for name in environment}
    for table in tables():
        if table.repeated:
            origin = ENVIRONMENT if "NOTARY_REPLICAS" in variables else FILE
            for replica in config.replicas:
                for name, value in replica.model_dump().items():
                    yield f"replicas.{replica.name}.{name}", value, origin
            continue
        for setting in table.settings:
            value = _value(config, setting)
            if not (table.optional and value is None):
                yield ".".join(setting.path), _without_password(setting, value), _origin(setting, in_file, variables)


def _value(config: Config, setting: Setting) -> object:
    found: Any = config
    for name in setting.path:
        if found is None:
            return None
        found = found.haproxy_settings() if found is config and name == "haproxy" else getattr(found, name)
    return found


def _origin(setting: Setting, in_file: Mapping[str, Any], variables: set[str]) -> str:
    # a table may be given as a whole, as JSON
    if any("NOTARY_" + "__".join(setting.path[:end]).upper() in variables for end in range(1, len(setting.path) + 1)):
        return ENVIRONMENT
    found: Any = in_file
    for name in setting.path:
        if not isinstance(found, Mapping) or name not in found:
            return DEFAULT
        found = found[name]
    return FILE


def _without_password(setting: Setting, value: object) -> object:
    if setting.path not in _CONNECTION_STRINGS or value is None:
        return value
    from replica.database import participant_database
    from replica.store.sqlite.kind import SQLITE

    return value if value == SQLITE else participant_database(str(value), "").conninfo


def _text(value: object) -> str:
    return "none" if value is None else str(value)


def _row_document(name: str, value: object, origin: str) -> dict[str, object]:
    return {"setting": name, "value": json.loads(json.dumps(value, default=str)), "origin": origin}


def _check_files(config: Config) -> None:
    """Raises NotaryError unless a replica could use every file that is named."""
    from replica.doctor.look_here import file_checks
    from replica.notary.socket_paths import check_socket_path

    for check in file_checks(config).values():
        check()
    config.ledgers()
    for replica in config.replicas:
        check_socket_path(config.admin_socket(replica.name))  # in its folder the longest one


async def _active(config: Config) -> ReplicaHealth | None:
    """The health of the replica that is active; None if none is."""
    import aiohttp

    from replica.acting.healths import fetch_health

    async with aiohttp.ClientSession() as session:
        for address in config.replicas:
            health = await fetch_health(session, address)
            if health is not None and health.leads:
                return health
    return None


def _document(budget: Budget) -> dict[str, Any]:
    return {
        "fault": budget.fault.value,
        "steps": [asdict(step) for step in budget.steps],
        "known_s": round(budget.known_s, 3),
        "complete": budget.complete,
    }


def warnings(config: Config) -> list[str]:
    """What is allowed, and weakens what the log promises."""
    log = config.log.settings
    if log.survives_power_loss or log.one_machine_only:
        return []
    replicas: dict[str, list[str]] = {}
    for replica in config.replicas:
        replicas.setdefault(replica.host, []).append(replica.name)
    return [
        f"{' and '.join(names)} are on one host, {host}: one power cut may set back the seen files of all of them, and "
        "answers that it takes from the log are then not noticed. Move them apart, or set log.kafka.durability = "
        '"synced".'
        for host, names in replicas.items()
        if len(names) > 1
    ]


def _print_promise(promise: Promise, warned: list[str]) -> None:
    table = make_table("request log", "an answer is given when", "one machine lost", "all power lost at once")
    table.add_row(*promise)
    out.print(table)
    for warning in warned:
        out.print(f"[yellow]warning[/] {warning}")
    out.print()


def _print_rules(config: Config) -> None:
    """The safety argument of the lease, with this configuration's figures."""
    table = make_table("what keeps two replicas from claiming to lead", ">is", "at most", ">is", "so that")
    for rule in config.election.rules():
        table.add_row(rule.name, f"{rule.value:g}", rule.limit_name, f"{rule.limit:g}", rule.because)
    out.print(table)
    _print_stalls(config)
    out.print()


def _print_stalls(config: Config) -> None:
    """How long each part may stand still."""
    stalls = _stalls(config)
    core_s, beside_s = stalls["core_s"], stalls["front_ends_and_haproxy_s"]
    out.print(
        f"A core may stand still for {core_s:g} s (lease_s - margin_s - heartbeat_s), front ends and HAProxy for"
        f" {beside_s:g} s: no connection is cut, and nobody takes over."
    )
    if "one_of_several_s" in stalls:
        out.print(
            f"One replica that stands still while another one answers: for {stalls['one_of_several_s']:g} s, then its"
            " connections are cut."
        )


def _stalls(config: Config) -> dict[str, float]:
    """The stalls that are forgiven, in seconds."""
    haproxy = config.haproxy_settings()
    beside_s = min(haproxy.stall_max_s, config.link.front_end_silent_s)
    core_s = min(config.election.stall_max_s, config.link.standing_max_age_s, beside_s)
    found = {"core_s": core_s, "front_ends_and_haproxy_s": beside_s}
    if haproxy.take_out is not None:
        found["one_of_several_s"] = haproxy.take_out.cut_min_s
    return {name: round(value_s, 3) for name, value_s in found.items()}


def _log_timeouts(config: Config) -> RaftSettings | None:
    """How soon log nodes of our own replace their leader; None for a log of another kind."""
    from replica.log.raft.log_settings import RaftLogSettings

    settings = config.log.settings
    return settings.timeouts() if isinstance(settings, RaftLogSettings) else None


def _log_document(config: Config) -> dict[str, Any]:
    timeouts = _log_timeouts(config)
    if timeouts is None:
        return {}
    typical_ms, worst_ms = timeouts.outage_ms(ROUND_TRIP_MS)
    outage = {"round_trip_ms": ROUND_TRIP_MS, "typical_ms": typical_ms, "worst_ms": worst_ms}
    return {"log_rules": [asdict(rule) for rule in timeouts.rules()], "log_outage": outage}


def _print_log(config: Config) -> None:
    """How long nobody can append when the log node that leads dies."""
    timeouts = _log_timeouts(config)
    if timeouts is None:
        return
    table = make_table("what keeps log nodes from needless elections", ">is", "at most", ">is", "so that")
    for rule in timeouts.rules():
        table.add_row(rule.name, f"{rule.value:g}", rule.limit_name, f"{rule.limit:g}", rule.because)
    out.print(table)
    typical_ms, worst_ms = timeouts.outage_ms(ROUND_TRIP_MS)
    out.print(
        f"When the log node that leads dies, another has committed after {typical_ms} ms typically and {worst_ms} ms at"
        f" worst (round trip {ROUND_TRIP_MS} ms, no split vote). It goes on beside the fail-over of a replica.\n"
    )


def _print(budget: Budget) -> None:
    from replica.cli.budget import FAULTS

    table = make_table(f"when {FAULTS[budget.fault]}", "decided by", ">worst")
    for step in budget.steps:
        worst = "?" if step.worst_s is None else f"{step.worst_s:.3f} s"
        table.add_row(step.name, step.setting, f"({worst}, meanwhile)" if step.meanwhile else worst)
    total = f"{budget.known_s:.3f} s" if budget.complete else f"{budget.known_s:.3f} s + ?"
    table.add_row("[bold]until the first answer, at the latest[/]", "", f"[bold]{total}[/]")
    out.print(table)
    out.print()
