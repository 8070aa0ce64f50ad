"""Traces of the front end over real HTTP: where a transaction's trace begins, and where a caller's own goes on."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ledger_api.client import SubmissionStream
from ledger_api.server.traces import LINKS_MAX, FrontEndTraces
from ledger_api.wire.submissions import submission_to_document
from replica.notary.canonical import tx_id_in
from replica.notary.requests import Submission
from replica.telemetry.traces import Traces, trace_ids
from tests.worlds.api_world import ApiWorld, StubParticipant, make_submission

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7  # of the W3C's own example
SAMPLED, UNSAMPLED = (f"00-{TRACE:032x}-{SPAN:016x}-{flags}" for flags in ("01", "00"))
SINGLE, BATCH = "/v1/submissions", "/v1/submissions/batch"


class Caller:
    """Submits over HTTP to a front end that traces, and looks at the spans."""

    def __init__(self, folder: Path, ratio: float) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        times = iter(range(1_000, 1_000_000))
        traces = FrontEndTraces(Traces(provider, ratio, "api"), lambda: next(times))
        self.world = ApiWorld(StubParticipant(), traces=traces)

    async def submit(self, submissions: Sequence[Submission], header: str | None) -> int:
        """One call with all of them; its status."""
        documents = [msgspec.to_builtins(submission_to_document(submission)) for submission in submissions]
        path, body = (SINGLE, documents[0]) if len(documents) == 1 else (BATCH, {"submissions": documents})
        async with aiohttp.ClientSession(self.world.endpoint) as session:
            headers = {} if header is None else {"traceparent": header}
            async with session.post(path, json=body, headers=headers) as answer:
                return answer.status

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


@pytest_asyncio.fixture
async def caller(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Caller]:
    caller = Caller(tmp_path, getattr(request, "param", 1.0))
    async with caller.world.serve():
        yield caller


def root_ids(submission: Submission) -> tuple[int, int]:
    return trace_ids(tx_id_in(submission.request))


def ids(span: Any) -> tuple[int, int]:
    context = getattr(span, "context", span)
    return context.trace_id, context.span_id


@pytest.mark.parametrize("header", [None, UNSAMPLED, "nonsense", f"{SAMPLED}-and-more"])
async def test_a_transactions_trace_begins_in_the_front_end(caller: Caller, header: str | None) -> None:
    """Goal: the root is where the request came in, by ids that the core knows. Method: without a trace to continue."""
    submission = make_submission()
    assert await caller.submit([submission], header) == 200
    (root,) = caller.spans()
    assert (root.name, ids(root), root.parent) == ("submit", root_ids(submission), None)
    assert root.attributes == {"notary.tx_id": tx_id_in(submission.request).hex(), "notary.answer": "Notarised"}
    assert not root.links
    assert root.start_time is not None
    assert root.end_time is not None
    assert root.start_time < root.end_time


async def test_a_callers_trace_goes_on_and_is_linked_with_the_transactions(caller: Caller) -> None:
    """Goal: from the caller's trace to the notary's and back. Method: `traceparent`, sampled, with a single one."""
    submission = make_submission()
    assert await caller.submit([submission], SAMPLED) == 200
    root, call = caller.spans()
    assert (call.name, call.context.trace_id) == (f"POST {SINGLE}", TRACE)
    assert call.parent is not None
    assert ids(call.parent) == (TRACE, SPAN)
    assert call.attributes is not None
    assert call.attributes["http.response.status_code"] == 200
    assert [ids(link) for link in call.links] == [root_ids(submission)]
    assert [ids(link) for link in root.links] == [(TRACE, SPAN)]
    assert (root.start_time, root.end_time) == (call.start_time, (call.end_time or 0) - 1_000)


async def test_a_batch_is_one_call_with_a_root_for_each_and_a_bounded_number_of_links(caller: Caller) -> None:
    """Goal: a large batch makes no endless span. Method: more than the bound, over several chunks."""
    submissions = [make_submission(inputs_count=1) for _ in range(LINKS_MAX + 8)]
    assert await caller.submit(submissions, SAMPLED) == 200
    *roots, call = caller.spans()
    assert {ids(root) for root in roots} == {root_ids(submission) for submission in submissions}
    assert len(call.links) == LINKS_MAX


@pytest.mark.parametrize("caller", [0.5], indirect=True)
async def test_the_front_end_samples_as_the_core_does(caller: Caller) -> None:
    """Goal: no root without its trace. Method: a half of them, by the trace id's lower half."""
    submissions = [make_submission(inputs_count=1) for _ in range(40)]
    await caller.submit(submissions, None)
    expected = {found for found in map(root_ids, submissions) if found[0] % 2**64 < 2**63}
    assert {ids(root) for root in caller.spans()} == expected


async def test_on_a_stream_each_transaction_begins_when_it_comes(caller: Caller) -> None:
    """Goal: no root as long as its stream. Method: two, one after the other, over one stream."""
    async with SubmissionStream(caller.world.endpoint) as stream:
        for _ in range(2):
            await stream.submit(make_submission())
    first, second = caller.spans()
    assert (first.name, second.name) == ("submit", "submit")
    assert (first.end_time or 0) < (second.start_time or 0)


async def test_a_refused_call_ends_the_callers_span_with_its_status(caller: Caller) -> None:
    """Goal: the caller sees where it ended. Method: a body that is no JSON; nothing reaches the participant."""
    async with aiohttp.ClientSession(caller.world.endpoint) as session:
        headers = {"traceparent": SAMPLED, "Content-Type": "application/json"}
        async with session.post(SINGLE, data=os.urandom(8), headers=headers) as answer:
            status = answer.status
    (call,) = caller.spans()
    assert call.attributes is not None
    assert (status, call.attributes["http.response.status_code"]) == (400, 400)
