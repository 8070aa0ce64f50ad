"""Restoring a topic on a real broker: same offsets, same records, and refused whenever that cannot be promised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pipeline.archive.layout import MANIFEST_NAME
from pipeline.archive.manifest import Manifest
from pipeline.archive.restore import REPORT_TAG, Evidence, plan_restore, run_restore
from pipeline.archive.restore_plan import RestorePlan, Until
from pipeline.archive.segment import archived_digest, parquet_path, read_segment, records_of
from pipeline.sources.stretch import read_stretch
from pipeline.sources.topic import look_at
from replica.local.kafka import KafkaCluster
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import create_topic
from replica.notary.errors import RestoreRefused
from tests.worlds.archive_world import SIGNER, TIME_MS, make_archive, some_log

pytestmark = pytest.mark.kafka

VALUES = some_log(2_500)
ALL = Until()
_numbers = count(1)


class Killed(BaseException):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Two and a half thousand records, one a second, in segments of a thousand."""
    return make_archive(tmp_path_factory.mktemp("restore") / "archive", VALUES, 1_000)[0]


@pytest.fixture
def target(kafka_broker: KafkaCluster) -> KafkaSettings:
    """A topic that does not exist yet."""
    return KafkaSettings(
        bootstrap_servers=kafka_broker.bootstrap_servers, topic=f"restored-{next(_numbers)}", single_broker=True
    )


def plan(archive: Manifest, target: KafkaSettings, until: Until = ALL, **options: object) -> RestorePlan:
    return plan_restore(archive, SIGNER.public_key, target, until, **options)  # type: ignore[arg-type]


def restore(
    archive: Manifest,
    target: KafkaSettings,
    until: Until = ALL,
    on_record: Callable[[int], None] = lambda offset: None,
    **options: object,
) -> Evidence:
    return run_restore(archive, plan(archive, target, until, **options), target, lambda: 7, on_record)


def produce(target: KafkaSettings, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": target.bootstrap_servers})
    producer.produce(target.topic, value, partition=0)
    assert producer.flush(20) == 0


def test_a_restored_topic_has_the_very_records(archive: Manifest, target: KafkaSettings) -> None:
    """Goal: value, time and offset of each record are what they were. Method: restore and read all back."""
    evidence = restore(archive, target)
    view = look_at(target)  # checks the contract as well
    assert (view.first, view.end, view.topic_id) == (0, len(VALUES), evidence.topic_id)
    restored = [record for batch in read_stretch(target, 0, view.end) for record in records_of(batch)]
    archived = [r for s in archive.segments for r in read_segment(archive.segments_folder, s.facts)]
    assert [archived_digest(record) for record in restored] == [archived_digest(record) for record in archived]
    assert evidence.archived_root == evidence.restored_root
    signed = evidence.signed_by(SIGNER.sign)
    Ed25519PublicKey.from_public_bytes(SIGNER.public_key).verify(
        bytes.fromhex(signed.signature), REPORT_TAG + msgspec.json.encode(evidence)
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("until", "last"),
    [
        (Until(offset=1_203), 1_203),
        (Until(time_ms=TIME_MS + 1_203_500), 1_203),
        (Until(time_ms=TIME_MS + 5_000_000), 2_499),
    ],
)
def test_a_point_in_offsets_or_in_time(archive: Manifest, target: KafkaSettings, until: Until, last: int) -> None:
    """Goal: no record behind the point comes back. Method: restore to an offset inside a segment, and to times."""
    assert restore(archive, target, until).last == last
    assert look_at(target).end == last + 1


@pytest.mark.thorough
def test_a_killed_restore_goes_on(archive: Manifest, target: KafkaSettings) -> None:
    """Goal: a kill loses and doubles nothing. Method: kill it half way, see it refused, resume, read all back."""

    def kill(offset: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        restore(archive, target, on_record=kill)
    assert 0 < look_at(target).end <= len(VALUES)
    assert "only --resume" in plan(archive, target).refused[0].detail
    evidence = restore(archive, target, resume=True)
    assert evidence.written_from > 0
    assert look_at(target).end == len(VALUES)


@pytest.mark.thorough
def test_another_writer_is_noticed(archive: Manifest, target: KafkaSettings) -> None:
    """Goal: no record ever lies at another offset unnoticed. Method: append a record of our own in the middle."""
    with pytest.raises(RestoreRefused, match="somebody else writes"):
        restore(archive, target, on_record=lambda offset: produce(target, b"foreign") if offset == 1_000 else None)
    assert plan(archive, target, resume=True).refused


def test_the_preflight_refuses_what_it_must(archive: Manifest, target: KafkaSettings, tmp_path: Path) -> None:
    """Goal: nothing is written when it would be unsafe. Method: each way in which a restore can be wrong."""
    head = archive.head
    later = msgspec.structs.replace(head, lines=head.lines + 1)
    refused = {
        "range": plan(archive, target, Until(offset=len(VALUES))),
        "head": plan(archive, target, head=later),
        "database": plan(archive, target, Until(offset=9), published=10),
    }
    assert {name: [check.name for check in found.refused] for name, found in refused.items()} == {
        name: [name] for name in refused
    }
    assert not plan(archive, target, Until(offset=9), published=10, accept_loss=True).refused
    assert [check.name for check in plan(archive, target, Until(time_ms=1)).refused] == ["range"]
    damaged, _ = make_archive(tmp_path / "damaged", VALUES[:30])
    parquet_path(damaged.segments_folder, 10, 19).unlink()
    assert [check.name for check in plan(damaged, target).refused] == ["archive", "range"]
    (damaged.folder / MANIFEST_NAME).unlink()
    with pytest.raises(RestoreRefused, match="there is no"):
        restore(damaged, target)


def test_a_topic_that_is_not_empty_or_not_safe_is_refused(
    archive: Manifest, target: KafkaSettings, kafka_broker: KafkaCluster
) -> None:
    """Goal: nothing is mixed. Method: a topic with a record of its own, one without the contract, the log itself."""
    asyncio.run(create_topic(target))
    produce(target, b"of its own")
    assert [check.name for check in plan(archive, target).refused] == ["target"]
    assert [check.name for check in plan(archive, target, resume=True).refused] == ["target"]
    unsafe = target.model_copy(update={"topic": f"{target.topic}-unsafe"})
    asyncio.run(kafka_broker.create_topic(unsafe.topic, partitions=2))
    assert "partitions is 2" in plan(archive, unsafe).refused[0].detail
