"""The request log as a DataFrame: Spark's own Kafka connector, or the Python source, which reads any log.

Both give the same rows in the same stretches, and one test suite checks both. They are lossless: key, value, time and
headers are those of the log. A query for a range of offsets returns all of it or fails: a log that lost its beginning
or has a hole fails the query.
"""

from __future__ import annotations

import json
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.sources.spark import LogSource
from replica.log.kafka import stretch
from replica.log.kafka.librdkafka import PARTITION
from replica.log.kafka.pointers import MAGIC, POINTER_BYTES, POINTERS
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import has_payload_topic
from replica.log.settings import LogSettings, dump_settings
from replica.notary.errors import ConfigError
from replica.notary.secret_files import check_secret

Connector = Literal["auto", "spark", "python"]

SCHEMA = LogSource.SCHEMA
_ASKED = 2  # how often Spark asks for the ends of the log, each time with all the patience that it has


def log_frame(
    spark: SparkSession,
    settings: LogSettings,
    first: int,
    end: int,
    *,
    splits: int = 1,
    connector: Connector = "auto",
) -> DataFrame:
    """The records with offsets in [first, end): `offset`, `timestamp_ms`, `key`, `value`, `headers`.

    About `splits` partitions, each a stretch of the log in log order. `connector`: Spark's own, the Python one, or
    Spark's if the session has it and the log has no topic of payloads, which Spark's cannot read. Raises ConfigError,
    and LogUnavailable. The query fails if any record of the range cannot be had, and as
    LogUnavailable (pipeline/failures.py) when brokers are silent for SILENCE_MAX_S.
    """
    if (kafka := _through_connector(spark, settings, connector)) is not None:
        options = _kafka_options(kafka, first, splits) | {"endingOffsets": _offsets(kafka, end)}
        return _columns(spark.read.format("kafka").options(**options).load())
    spark.dataSource.register(LogSource)
    return (
        spark.read.format(LogSource.name())
        .options(settings=dump_settings(settings), first=first, end=end, splits=splits)
        .load()
    )


def log_stream(
    spark: SparkSession,
    settings: LogSettings,
    first: int,
    *,
    splits: int,
    batch_records: int,
    connector: Connector = "auto",
) -> DataFrame:
    """The records from an offset on, as a stream of batches of at most `batch_records`; else as `log_frame`.

    A new query begins at `first`; one that has a checkpoint goes on there.
    """
    if (kafka := _through_connector(spark, settings, connector)) is not None:
        options = _kafka_options(kafka, first, splits) | {"maxOffsetsPerTrigger": str(batch_records)}
        return _columns(spark.readStream.format("kafka").options(**options).load())
    spark.dataSource.register(LogSource)
    return (
        spark.readStream.format(LogSource.name())
        .options(settings=dump_settings(settings), first=first, splits=splits, batch_records=batch_records)
        .load()
    )


def has_connector(spark: SparkSession) -> bool:
    """Whether this Spark has a Kafka connector, from wherever its jars came. No broker is asked."""
    try:
        spark.read.format("kafka").options(**{"kafka.bootstrap.servers": "none:1", "subscribe": "none"}).load().schema  # noqa: B018
    except AnalysisException:
        return False
    return True


def _through_connector(spark: SparkSession, settings: LogSettings, connector: Connector) -> KafkaSettings | None:
    """The settings of a log that Spark's own connector reads; None where the Python source does. Raises ConfigError."""
    if not isinstance(settings, KafkaSettings):
        if connector == "spark":
            raise ConfigError(
                f"log.kind is {settings.kind}, and Spark's connector reads Kafka only: --connector python"
            )
        return None
    if connector == "spark" and not has_connector(spark):
        raise ConfigError(
            "Spark has no Kafka connector here: `make setup` fetches its jars, or name them with --packages, or use"
            " --connector python"
        )
    if connector == "python" or (connector == "auto" and (not has_connector(spark) or has_payload_topic(settings))):
        return None
    return settings


def _kafka_options(settings: KafkaSettings, first: int, splits: int) -> dict[str, str]:
    return _client_options(settings) | {
        "assign": json.dumps({settings.topic: [PARTITION]}),
        "startingOffsets": _offsets(settings, first),
        "minPartitions": str(splits),
        "failOnDataLoss": "true",
        "fetchOffset.numRetries": str(_ASKED),
        "kafkaConsumer.pollTimeoutMs": str(_silence_max_ms()),
        "includeHeaders": "true",
    }


def _offsets(settings: KafkaSettings, offset: int) -> str:
    return json.dumps({settings.topic: {PARTITION: offset}})


def _columns(rows: DataFrame) -> DataFrame:
    time = F.unix_millis("timestamp").alias("timestamp_ms")
    return rows.select("offset", time, "key", _without_pointers(F.col("value")).alias("value"), "headers")


def _without_pointers(value: Column) -> Column:
    """The value; the query fails at a pointer to a payload, because this connector reads one topic."""
    pointer = (F.length(value) == POINTER_BYTES) & value.startswith(F.lit(MAGIC))
    return F.when(pointer, F.raise_error(F.lit(POINTERS)).cast("binary")).otherwise(value)


def _client_options(settings: KafkaSettings) -> dict[str, str]:
    """The settings as the JVM client names them. They hold the password, if there is one: never log them."""
    security = settings.security
    options = {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.security.protocol": security.protocol,
        "kafka.isolation.level": "read_committed",
        "kafka.default.api.timeout.ms": str(_silence_max_ms() // _ASKED),
        "kafka.request.timeout.ms": str(_silence_max_ms() // _ASKED // 2),  # so that another broker can be asked
        "kafka.client.dns.lookup": "use_all_dns_ips",
        "kafka.allow.auto.create.topics": "false",
    }
    if security.ca_file is not None:
        options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(security.ca_file)}
    if security.certificate_file is not None and security.key_file is not None:
        check_secret(security.key_file)
        options |= {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": security.certificate_file.read_text(),
            "kafka.ssl.keystore.key": security.key_file.read_text(),
        }
    if security.protocol.startswith("SASL"):
        options |= {
            "kafka.sasl.mechanism": security.sasl_mechanism,
            "kafka.sasl.jaas.config": _jaas(settings),
        }
    return options


def _silence_max_ms() -> int:
    return round(stretch.SILENCE_MAX_S * 1_000)


def _jaas(settings: KafkaSettings) -> str:
    plain = settings.security.sasl_mechanism == "PLAIN"
    module = "plain.PlainLoginModule" if plain else "scram.ScramLoginModule"
    password = settings.security.client_config()["sasl.password"]  # checks the file's mode
    user, secret = (
        text.replace("\\", "\\\\").replace('"', '\\"') for text in (settings.security.sasl_username or "", password)
    )
    return f'org.apache.kafka.common.security.{module} required username="{user}" password="{secret}";'
