"""Every number from outside is bounded by its type, and what goes wrong with one submission is its own affair."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pydantic
import pytest
from structlog.testing import capture_logs

from ha.errors import SettingsError
from ha.settings import ElectionSettings
from haproxy.render import HaproxySettings
from ledger_api.client.signing import encode_submission
from ledger_api.server.openapi import make_openapi
from ledger_api.server.settings import ApiSettings, FrontEndDocument
from ledger_api.server.validation import Validator
from ledger_api.wire.stream_frames import Submissions
from ledger_api.wire.submissions import BatchDocument, SubmissionDocument
from replica.active import own_records
from replica.config.model import Config
from replica.link.frames import FromFrontEnd, Submit
from replica.link.interface import SubmitOptions
from replica.local.run_file import RunFile
from replica.notary.answers import Accepted, Notarised, NotNow
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.records import RECORD_MAX_BYTES, Record, RequestRecord
from replica.notary.requests import DEDUPLICATION_LIMIT_S
from replica.operators.admin import PruneCall, SwitchoverCall
from replica.settings import CoreSettings
from replica.telemetry.counts import ApiCounts
from tests.simulation.virtual import run_virtually
from tests.worlds.api_world import make_submission
from tests.worlds.beginning import LEDGER
from tests.worlds.core_world import World, state, submission

NUMBERS = (math.inf, -math.inf, math.nan, 1e303, 1e13, 9_223_372_036_854_775_807.0, -1.0)


def numbers_without_bounds(schema: Any, path: str = "") -> Iterator[str]:
    """The numbers of a JSON Schema that have no lower or no upper bound."""
    if isinstance(schema, list):
        for at, inner in enumerate(schema):
            yield from numbers_without_bounds(inner, f"{path}[{at}]")
    if not isinstance(schema, dict):
        return
    low, high = {"minimum", "exclusiveMinimum"} & schema.keys(), {"maximum", "exclusiveMaximum"} & schema.keys()
    if schema.get("type") in ("number", "integer") and not (low and high) and "enum" not in schema:
        yield path
    for name, inner in schema.items():
        yield from numbers_without_bounds(inner, f"{path}.{name}")


def test_every_number_of_the_configuration_has_a_range() -> None:
    """Goal: no setting can be infinite. Method: each model's schema; the election has a test of its own."""
    for model in (Config, HaproxySettings, FrontEndDocument, RunFile):
        schema = model.model_json_schema()
        schema["$defs"].pop("ElectionSettings", None)
        assert list(numbers_without_bounds(schema)) == [], model.__name__


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", [setting.name for setting in dataclasses.fields(ElectionSettings)])
def test_no_setting_of_the_election_is_beyond_all_bounds(name: str, number: float) -> None:
    """Goal: a lease is some time, and NaN, which is below nothing, is none. Method: each setting, each odd number."""
    with pytest.raises(SettingsError, match=name):
        ElectionSettings(**{name: number})


@pytest.mark.parametrize("number", NUMBERS)
def test_no_deduplication_period_of_the_configuration_is_beyond_all_bounds(number: float) -> None:
    """Goal: what is taken from a clock's time stays a 64-bit number. Method: each odd number."""
    with pytest.raises(pydantic.ValidationError, match="deduplication_max_s"):
        CoreSettings(deduplication_max_s=number)


def test_a_share_that_comes_in_years_is_refused() -> None:
    """Goal: an announced wait is finite. Method: the smallest rate above none at all."""
    with pytest.raises(pydantic.ValidationError, match="rate_per_s"):
        ApiSettings(rate_per_s=5e-324)


def unbounded_parts(kind: Any) -> Iterator[str]:
    """The numbers of a msgspec type that have no lower or no upper bound, wherever they are in it."""
    seen: set[int] = set()

    def walk(part: Any, path: str) -> Iterator[str]:
        if id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, msgspec.inspect.IntType | msgspec.inspect.FloatType):
            if (part.ge is None and part.gt is None) or (part.le is None and part.lt is None):
                yield path
            return
        if isinstance(part, msgspec.inspect.StructType):
            for field in part.fields:
                yield from walk(field.type, f"{path}.{field.name}")
            return
        for name in getattr(part, "__struct_fields__", ()):
            value = getattr(part, name)
            for inner in value if isinstance(value, tuple) else (value,):
                if isinstance(inner, msgspec.inspect.Type):
                    yield from walk(inner, path)

    yield from walk(msgspec.inspect.type_info(kind), getattr(kind, "__name__", str(kind)))


@pytest.mark.parametrize(
    "kind", [SubmissionDocument, BatchDocument, Submissions, FromFrontEnd, SwitchoverCall, PruneCall]
)
def test_every_number_that_is_sent_to_a_replica_has_a_range(kind: Any) -> None:
    """Goal: documents, frames and admin calls say what they take. Method: walk each type."""
    assert list(unbounded_parts(kind)) == []


@pytest.mark.parametrize("number", NUMBERS)
def test_frames_carry_no_odd_number(number: float) -> None:
    """Goal: MessagePack has infinities, a deduplication period none. Method: a stream's frame, and the link's."""
    frame = msgspec.msgpack.encode([1, [], False, number, 0])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(frame, type=Submissions)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode([1, [], [False, number, 0]]), type=Submit)


@pytest.mark.parametrize("text", ["1e303", "1e13", "9223372036854775807", "-1", "1e999", "Infinity", "NaN"])
def test_the_gate_takes_no_odd_period(text: str) -> None:
    """Goal: a period beyond all bounds is refused with a code. Method: a good submission, but for the one number."""
    validator = Validator(ApiCounts(), 100, lambda: LEDGER)
    good = encode_submission(make_submission())
    validator.read(good)
    with pytest.raises(BadRequest) as refused:
        validator.read(good[:-1] + b',"deduplication":{"duration_s":%b}}' % text.encode())
    assert refused.value.code is Code.MALFORMED_JSON


def test_the_specification_has_the_range_of_a_period() -> None:
    """Goal: a client can know before it asks. Method: the schemas of both protocols."""
    schema = msgspec.json.schema_components([SubmissionDocument])[1]["DeduplicationDocument"]
    (number,) = [kind for kind in schema["properties"]["duration_s"]["anyOf"] if kind["type"] == "number"]
    assert (number["minimum"], number["maximum"]) == (0, DEDUPLICATION_LIMIT_S)
    assert "DeduplicationDocument" not in inspect.getsource(make_openapi)  # it takes msgspec's schema as it is


@pytest.mark.parametrize("number", [*NUMBERS, DEDUPLICATION_LIMIT_S])
def test_a_period_that_gets_past_the_types_harms_nobody_else(number: float) -> None:
    """Goal: one submission ends no replica. Method: options that no frame can carry, handed to the core."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            epoch = replica.participant.epoch
            (odd,) = await replica.submit(submission(1, [state(91)]), options=SubmitOptions(deduplication_s=number))
            assert not isinstance(odd, Accepted)
            (good,) = await replica.submit(submission(2, [state(92)]))
            assert isinstance(good, Notarised)
            assert not replica.participant.broken.done()
            assert replica.participant.epoch == epoch

    run_virtually(story())


@pytest.mark.parametrize("place", ["offer", "record", "size", "log"])
def test_a_submission_that_fails_leaves_the_rest_of_its_batch_alone(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a failure is answered to its sender, counted and logged once. Method: nine good ones with a bad one among
    them, which fails where it is read, where its record is made, because that is larger than a log
    takes, or when it is read back; the load falls back to nothing."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            batch = [submission(n, [state(90 + n)], submission_id=f"s{n}") for n in range(10)]
            if place == "offer":
                batch[4] = msgspec.structs.replace(batch[4], request=b"short")
            elif place == "size":
                batch[4] = msgspec.structs.replace(batch[4], request=batch[4].request + bytes(RECORD_MAX_BYTES))
            elif place == "log":
                batch[4] = msgspec.structs.replace(batch[4], request=b"NOTARY" + batch[4].request[6:])
            else:
                _refuse_to_encode(monkeypatch)
            with capture_logs() as lines:
                answers = await replica.submit(*batch)
                again = await replica.submit(batch[4])
            await replica.participant.activation.publisher.flush()  # type: ignore[union-attr]
            failed = [answer for answer in answers if isinstance(answer, NotNow)]
            assert failed == [answers[4]]
            assert failed[0].code == Code.INTERNAL.name
            assert all(isinstance(answer, Notarised) for answer in answers if answer is not answers[4])
            assert isinstance(again[0], NotNow)
            assert replica.participant.failures.count == 2
            assert len([line for line in lines if line["event"] == "submission_failed"]) == 1
            assert (replica.participant.in_flight, replica.participant.states_in_flight) == (0, 0)
            assert not replica.participant.broken.done()

    run_virtually(story())


def _refuse_to_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = own_records.encode_record

    def refuse(record: Record) -> bytes:
        if isinstance(record, RequestRecord) and record.submission_id == "s4":
            raise OverflowError("a value of s4")
        return encode(record)

    monkeypatch.setattr(own_records, "encode_record", refuse)
