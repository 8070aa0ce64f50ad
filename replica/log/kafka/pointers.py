"""Pointers to payloads: a log on Kafka may keep large requests in a second topic, and in their place only where. Pure.

What is a pointer, and what it stands for, depends on bytes that never change. So every reader, at any time, reads the
same record: the payload, or, where a pointer is not well formed or its payload is no request, the pointer itself, which
is void because no record begins like one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256

from replica.notary.codes import Code
from replica.notary.errors import LogRefused
from replica.notary.records import RECORD_MAX_BYTES

MAGIC = b"notary/payload/1"  # its first byte is a number in MessagePack, and every record is an array
PARTITIONS_MAX = 32  # of payloads: part of the format, because it bounds what a reader opens
_LAYOUT = struct.Struct(">16sIQI32s")
POINTER_BYTES = _LAYOUT.size
_OFFSET_MAX = 2**63 - 1
# An array of 14 elements, kind 1, format 2: a request.
_SPLIT_BEGINS = b"\x9d\x01\x02"
POINTERS = "the log has pointers to payloads, which Spark's connector does not follow: use --connector python"


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a payload is, and which one it is."""

    partition: int
    offset: int
    size: int
    digest: bytes


def payload_topic(topic: str) -> str:
    """The name of the topic with the payloads of a log's topic."""
    return f"{topic}-payloads"


def pointer_in(value: bytes) -> Pointer | None:
    """The pointer that a value of the log is; None if it is a record, or not well formed."""
    if len(value) != POINTER_BYTES or not value.startswith(MAGIC):
        return None
    _, partition, offset, size, digest = _LAYOUT.unpack(value)
    if partition >= PARTITIONS_MAX or offset > _OFFSET_MAX or size > RECORD_MAX_BYTES:
        return None
    return Pointer(partition, offset, size, digest)


def pointer_to(payload: bytes, partition: int, offset: int) -> bytes:
    """The value that stands for a payload at this place."""
    return _LAYOUT.pack(MAGIC, partition, offset, len(payload), sha256(payload).digest())


def may_be_split(record: bytes) -> bool:
    """Whether a pointer may stand for this record: requests of format 2 only."""
    return record.startswith(_SPLIT_BEGINS)


def merged(value: bytes, pointer: Pointer, payload: bytes, topic: str) -> bytes:
    """The record that the log has where it says `value`, a pointer, and the payload is there. `topic`: of payloads.

    Raises LogRefused (LOG_PAYLOAD_MISSING) when the payload is not the one that was written.
    """
    if len(payload) != pointer.size:
        differs = f"has {len(payload)} bytes, its pointer says {pointer.size}"
    elif sha256(payload).digest() != pointer.digest:
        differs = "has another digest than its pointer says"
    else:
        return payload if may_be_split(payload) else value
    where = name_payload(topic, pointer.partition, pointer.offset)
    raise LogRefused(f"{where} {differs}", Code.LOG_PAYLOAD_MISSING)


def name_payload(topic: str, partition: int, offset: int) -> str:
    """A payload's place, for people. `topic`: of payloads."""
    return f"the payload at offset {offset} of partition {partition} of topic {topic}"
