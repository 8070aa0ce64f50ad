"""A Kafka broker as a bank runs it: TLS everywhere, certificates or SCRAM passwords, and an authorizer that denies."""

from __future__ import annotations

import asyncio
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from replica.local.kafka import READY_MAX_S, KafkaBroker, find_java, find_libs
from replica.local.ports import LOOPBACK, PortReservation
from replica.local.process import Command, run_to_end
from replica.log.kafka.settings import KafkaSettings
from tests.certificates import Authority

TOOLS = Path(__file__).parents[1] / ".tools" / "kafka-tools" / "libs"
ADMINISTRATOR, BROKER = "administrator", "broker"
MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
ANSWER_MAX_S = 30.0


class SecureBroker(KafkaBroker):
    """One broker with a listener for certificates, one for passwords, and a controller that asks for a certificate."""

    def __init__(self, folder: Path, ports: PortReservation, authority: Authority) -> None:
        super().__init__(1, folder, ports.take(), ports.take(), find_libs())
        self.topics_deletable = True  # so that only the authorizer keeps anybody from it
        self.sasl_port = ports.take()
        self._ca_file = authority.ca_file
        self._keystore = folder / "broker.pem"
        certificate_file, key_file = authority.issue(BROKER)
        folder.mkdir(parents=True, exist_ok=True)
        self._keystore.touch(mode=0o600)
        self._keystore.write_text(key_file.read_text() + certificate_file.read_text())

    def properties(self, voters: str, cluster_size: int) -> str:
        """What makes it secure comes behind what every broker of ours has: the last value counts."""
        listeners = f"SSL://{LOOPBACK}:{self.port},SASL_SSL://{LOOPBACK}:{self.sasl_port}"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        secured = {
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{self.controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._keystore,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._ca_file,
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            **{f"listener.name.sasl_ssl.{name.lower()}.sasl.jaas.config": scram for name in MECHANISMS},
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:CN={BROKER};User:CN={ADMINISTRATOR}",
            "allow.everyone.if.no.acl.found": "false",
        }
        return super().properties(voters, cluster_size) + "".join(f"{key}={value}\n" for key, value in secured.items())


class SecureKafka:
    """The broker, its authority, and what clients of it are configured with."""

    def __init__(self, folder: Path, ports: PortReservation) -> None:
        self.folder = folder
        self.authority = Authority(folder / "pki")
        self.broker = SecureBroker(folder / "broker", ports, self.authority)
        self.administrator = AdminClient(self.by_certificate(ADMINISTRATOR, "any").security.client_config() | {
            "bootstrap.servers": self.bootstrap, "log_level": 2,
        })  # fmt: skip

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.broker.port}"

    async def start(self) -> None:
        await self.broker.format("c2VjdXJlLWthZmthLTEyMw", f"1@{LOOPBACK}:{self.broker.controller_port}", 1)
        self.broker.process.start()
        await self.broker.process.wait_ready(self.broker.listens, READY_MAX_S)

    async def stop(self) -> None:
        await self.broker.process.stop(0)

    def by_certificate(self, name: str, topic: str, authority: Authority | None = None) -> KafkaSettings:
        """Settings of a client whose certificate names it: its principal is User:CN=<name>."""
        certificate_file, key_file = (authority or self.authority).issue(name)
        security = {
            "protocol": "SSL",
            "ca_file": self.authority.ca_file,
            "certificate_file": certificate_file,
            "key_file": key_file,
        }
        return self._settings(self.broker.port, topic, security)

    def by_password(self, name: str, password: str, topic: str, mechanism: str = "SCRAM-SHA-512") -> KafkaSettings:
        """Settings of a client that logs in: its principal is User:<name>."""
        password_file = self.folder / f"{name}.{mechanism}.password"
        password_file.touch(mode=0o600)
        password_file.write_text(f"{password}\n")
        security = {
            "protocol": "SASL_SSL",
            "ca_file": self.authority.ca_file,
            "sasl_mechanism": mechanism,
            "sasl_username": name,
            "sasl_password_file": password_file,
        }
        return self._settings(self.broker.sasl_port, topic, security)

    async def set_password(self, name: str, password: str) -> None:
        """Let a user log in with either mechanism."""
        for mechanism in MECHANISMS.values():  # one a request: the broker takes no more of one user
            wanted = UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
            (future,) = self.administrator.alter_user_scram_credentials([wanted]).values()
            await asyncio.to_thread(future.result, ANSWER_MAX_S)

    async def grant(self, commands: str) -> None:
        """Run printed calls of kafka-acls.sh as they are, with Kafka's own tool and the administrator's certificate."""
        settings = self.by_certificate(ADMINISTRATOR, "any").security
        assert settings.certificate_file is not None and settings.key_file is not None
        store = self.folder / "administrator.pem"
        store.touch(mode=0o600)
        store.write_text(settings.key_file.read_text() + settings.certificate_file.read_text())
        properties = self.folder / "administrator.properties"
        properties.write_text(
            "security.protocol=SSL\nssl.keystore.type=PEM\nssl.truststore.type=PEM\n"
            f"ssl.keystore.location={store}\nssl.truststore.location={self.authority.ca_file}\n"
        )
        tool = f'{find_java()} -Xmx128m -XX:TieredStopAtLevel=1 -cp "{TOOLS}/*:{find_libs()}/*"'
        script = f'kafka-acls.sh() {{ {tool} org.apache.kafka.tools.AclCommand "$@"; }}\n{commands}'
        argv = ["bash", "-euc", f"KAFKA={self.bootstrap} KAFKA_ADMIN={properties}\n{script}"]
        await run_to_end(Command(name="kafka-acls", argv=argv, log_path=self.folder / "kafka-acls.log"), READY_MAX_S)

    def _settings(self, port: int, topic: str, security: dict[str, object]) -> KafkaSettings:
        given = {"bootstrap_servers": f"{LOOPBACK}:{port}", "topic": topic, "single_broker": True, "security": security}
        return KafkaSettings.model_validate(given)
