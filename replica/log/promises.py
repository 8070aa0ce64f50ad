"""What an answer rests on, by kind of log and its settings: when it is given, and what a loss takes. Pure."""

from __future__ import annotations

from typing import NamedTuple

from replica.log.in_memory.settings import MemoryLogSettings
from replica.log.kafka.settings import KafkaSettings
from replica.log.postgres.settings import PostgresLogSettings
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.settings import LogSettings

NOTHING = "nothing lost"
EXPOSED = (
    "lost beyond the lead: noticed, service waits for a person. Lost within the lead: not noticed, and its states can "
    "be spent again"
)


class Promise(NamedTuple):
    """What is promised with one kind of log and its settings, in the words of README."""

    setting: str
    answered_when: str
    one_machine_lost: str
    all_power_lost: str


def promise(settings: LogSettings) -> Promise:
    """The promise of these settings."""
    match settings:
        case KafkaSettings():
            return _of_kafka(settings)
        case PostgresLogSettings():
            return _of_postgres(settings)
        case RaftLogSettings():
            return _of_raft(settings)
        case MemoryLogSettings():
            lost = "everything lost"
            return Promise("log in memory", "the process of the log has it in memory", lost, lost)


def _of_kafka(settings: KafkaSettings) -> Promise:
    synced = settings.durability == "synced"
    where = "on disk" if synced else "in memory"
    copies = "the leader and another in-sync replica have it" if synced else "two in-sync brokers have it"
    return Promise(
        f'kafka, log.kafka.durability = "{settings.durability}"',
        f"{'the only broker has it' if settings.single_broker else copies} {where}",
        _only_disk(settings.single_broker, "broker"),
        NOTHING if synced else EXPOSED,
    )


def _of_postgres(settings: PostgresLogSettings) -> Promise:
    standbys = settings.standbys
    flushed = f", and on disk at {'a standby' if standbys == 1 else f'{standbys} standbys'}" if standbys else ""
    return Promise("postgres", f"committed{flushed}", _only_disk(settings.single_server, "database server"), NOTHING)


def _of_raft(settings: RaftLogSettings) -> Promise:
    nodes = len(settings.addresses)
    needed = nodes // 2 + 1
    return Promise("raft", f"{needed} of {nodes} nodes have synced", _only_disk(needed < 2, "log node"), NOTHING)


def _only_disk(alone: bool, server: str) -> str:
    return f"everything lost, where it is the {server}'s" if alone else NOTHING
