"""Who may do what with the request log's topic: least privilege for Kafka's authorizer. Pure.

Replicas share one principal, because any of them may become active. A passive never writes, and the late writes of a
deposed active are void for every reader. No role here may delete the topic or its records, or change its settings.
"""

from __future__ import annotations

import shlex
from enum import Enum


class TopicRole(Enum):
    """Kinds of principals, each with the operations that it needs on the topic, as Kafka's tools spell them."""

    REPLICA = ("Read", "Write", "Describe", "DescribeConfigs")
    READER = ("Read", "Describe", "DescribeConfigs")  # archives, audits, rebuilds an index
    CREATOR = ("Create", "Read", "Write", "Describe", "DescribeConfigs")  # `notary topic create`, and a restore

    def __init__(self, *operations: str) -> None:
        self.operations = operations


def grant_command(role: TopicRole, principal: str, topic: str) -> str:
    """The call of Kafka's own tool that grants a principal (`User:notary`, `User:CN=notary`) its rights on the topic.

    It names neither brokers nor the administrator's log-in. Those are `$KAFKA`, and the properties file `$KAFKA_ADMIN`.
    """
    operations = " ".join(f"--operation {operation}" for operation in role.operations)
    return (
        'kafka-acls.sh --bootstrap-server "$KAFKA" --command-config "$KAFKA_ADMIN" --add'
        f" --allow-principal {shlex.quote(principal)} {operations} --topic {shlex.quote(topic)}"
    )
