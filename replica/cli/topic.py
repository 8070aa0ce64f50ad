"""`notary topic`: the request log's topic, and the contract that safety rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, find_config, load, out, run
from replica.cli.log_set_up import EmptyOption, OfficerOption, check_log, create_log, tell_ledger

if TYPE_CHECKING:
    from replica.config.model import Config
    from replica.log.kafka.settings import KafkaSettings

app = typer.Typer(help="Create, check and repair the request log's topic.", no_args_is_help=True)


@app.command()
def create(config: ConfigChoice = None, officer: OfficerOption = None, to_restore: EmptyOption = False) -> None:
    """Create the topic with the settings of the contract, and its first record; one that exists is checked and left.

    That record, the genesis, makes the topic a ledger, and names the officers who may say which keys sign for parties.
    Where log.kafka.payload_partitions is above 0, the topic of payloads as well.
    """
    configured = load(find_config(config))
    settings = _topic(configured)
    topic_id, ledger_id = run(create_log(configured, settings, officer or (), to_restore=to_restore))
    out.print(f"topic {settings.topic} keeps the contract; its id is {topic_id}")
    tell_ledger(ledger_id)
    for further in settings.topics[1:]:
        out.print(f"topic {further} keeps the contract")


@app.command()
def check(config: ConfigChoice = None) -> None:
    """Check the topic's settings, and that it is the one that the database belongs to. Changes nothing."""
    settings = load(find_config(config))
    topic = _topic(settings).topic
    topic_id, ledger_id, records = run(check_log(settings))
    out.print(f"topic {topic} keeps the contract; its id is {topic_id}; {records} records")
    tell_ledger(ledger_id)


@app.command()
def repair(config: ConfigChoice = None) -> None:
    """Set what the contract demands, flush.messages=1 for example, on topics that exist; also while replicas run.

    It needs the right to alter the topics' configuration, which no principal of `notary topic access` has.
    """
    from replica.log.kafka.topic import repair_topic

    settings = _topic(load(find_config(config)))
    changed = run(repair_topic(settings))
    for topic, changes in changed.items():
        out.print(f"topic {topic}: set {', '.join(f'{name}={value}' for name, value in changes.items())}")
    out.print(f"topic {settings.topic} keeps the contract")


@app.command()
def access(
    config: ConfigChoice = None,
    *,
    replicas: Annotated[str, typer.Option(help="Principal of the replicas.")] = "User:notary",
    reader: Annotated[str, typer.Option(help="Principal that archives and audits.")] = "User:notary-archive",
    creator: Annotated[str, typer.Option(help="It creates or restores the topic.")] = "User:notary-owner",
) -> None:
    """Print the commands that give principals their rights on the topic, and no more; run them as administrator.

    Where no payloads are written (any more), those to read them, too: pointers to them may be in the log for ever.

    With mutual TLS a principal is the certificate's subject, User:CN=notary, unless the brokers map it.
    """
    from replica.log.kafka.acl import TopicRole, grant_command
    from replica.log.kafka.pointers import payload_topic

    settings = _topic(load(find_config(config)))
    for topic in settings.topics:
        for role, principal in zip(TopicRole, (replicas, reader, creator), strict=True):
            typer.echo(grant_command(role, principal, topic))
    if not settings.payload_partitions:
        for principal in (replicas, reader):
            typer.echo(grant_command(TopicRole.READER, principal, payload_topic(settings.topic)))


def _topic(config: Config) -> KafkaSettings:
    """Where the topic is. Raises ConfigError for a log of another kind, which has none."""
    from replica.log.kafka.settings import KafkaSettings
    from replica.notary.errors import ConfigError

    settings = config.log.settings
    if not isinstance(settings, KafkaSettings):
        raise ConfigError(f"log.kind is {settings.kind}: only a request log on Kafka has a topic")
    return settings
