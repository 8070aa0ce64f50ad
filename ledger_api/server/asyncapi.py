"""The AsyncAPI 3.0 document of the message sequences: the API's streams, and the request log. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from ledger_api.wire.feed import CheckpointDocument, CompletionDocument, EndDocument, UpdateDocument
from ledger_api.wire.stream_frames import PROTOCOL, Answers, Closing, Submissions, Waits, Welcome
from replica.notary.records import FORMAT, BarrierRecord, RequestRecord, SignOfLifeRecord

Schema = dict[str, Any]
_STREAMED = (CompletionDocument, UpdateDocument, CheckpointDocument, EndDocument)
_LOGGED = (BarrierRecord, RequestRecord, SignOfLifeRecord)
_ANSWERING = (Welcome, Answers, Waits, Closing)
_FRAMED = (Submissions, *_ANSWERING)
_REF = "#/components/schemas/{name}"
_BINARY = "MessagePack arrays; what JSON Schema shows as a text in base64 is a byte string there. "
_RECORDS = (
    f"Records are {_BINARY}A record "
    "counts only if it carries the activation id of the barrier in force: docs/formats.md has the rule, and the "
    "canonical bytes inside a request record."
)


_SUBMIT = (
    f"A WebSocket, subprotocol `{PROTOCOL}`: one frame a binary message. Frames are {_BINARY}"
    "The server begins with its welcome; from then on the client sends submissions, at most the window of them without "
    "an answer, and each gets one answer, in any order. A wait says how long some answers may take; they come all the "
    "same. While submissions without an answer have more than `stream_window_bytes` (a setting, 8 MiB), no further "
    "frame is read. A frame of answers has at most 1 MiB, unless one answer alone has more. Whatever ends the "
    "connection: connect again, and send again, with the same ids, what has no answer. What later releases add at an "
    "array's end is to be skipped."
)


def make_asyncapi(version: str) -> Schema:
    """The document; `version` is the release."""
    _, schemas = msgspec.json.schema_components([*_STREAMED, *_LOGGED, *_FRAMED], ref_template=_REF)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Notary streams and request log",
            "version": version,
            "description": "Lines of JSON that the ledger API streams, the frames of its stream of submissions, and "
            "the records of the request log.",
        },
        "defaultContentType": "application/json",
        "channels": {
            "completions": _stream("/v1/completions", "Completions", (CompletionDocument, *_STREAMED[2:])),
            "updates": _stream("/v1/updates", "Notarised transactions", (UpdateDocument, *_STREAMED[2:])),
            "submissions": {
                "address": "/v1/submissions/stream",
                "description": _SUBMIT,
                "messages": _messages(_FRAMED),
            },
            "requestLog": {
                "address": "{topic}",
                "description": f"The request log, format {FORMAT}: one topic with one partition, kept for ever. "
                + _RECORDS,
                "parameters": {"topic": {"description": "The setting `topic` of the request log."}},
                "messages": _messages(_LOGGED),
            },
        },
        "operations": {
            **{name: _operation("send", name) for name in ("completions", "updates", "requestLog")},
            "submit": _operation("receive", "submissions", (Submissions,)),
            "answer": _operation("send", "submissions", _ANSWERING),
        },
        "components": {
            "messages": {kind.__name__: _message(kind) for kind in (*_STREAMED, *_LOGGED, *_FRAMED)},
            "schemas": schemas,
        },
    }


def _stream(path: str, what: str, kinds: tuple[type, ...]) -> Schema:
    return {
        "address": path + "?after={after}&follow=true",
        "description": f"{what} after an offset, one JSON document a line (application/x-ndjson), or server-sent "
        "events with `Accept: text/event-stream`. A line has at most 2 MB; 512 KiB are written at a "
        "time, or one line. A checkpoint says how far a quiet stream is; go on after the last "
        "offset, on any replica.",
        "parameters": {"after": {"description": "The offset after which to start; 0 is the begin."}},
        "messages": _messages(kinds),
    }


def _operation(action: str, channel: str, kinds: tuple[type, ...] = ()) -> Schema:
    """What the notary does on a channel: with all of its messages, unless kinds are named."""
    operation: Schema = {"action": action, "channel": {"$ref": f"#/channels/{channel}"}}
    if kinds:
        operation["messages"] = [{"$ref": f"#/channels/{channel}/messages/{kind.__name__}"} for kind in kinds]
    return operation


def _messages(kinds: tuple[type, ...]) -> Schema:
    return {kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"} for kind in kinds}


def _message(kind: type) -> Schema:
    content_type = "application/json" if kind in _STREAMED else "application/msgpack"
    return {
        "name": kind.__name__,
        "contentType": content_type,
        "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
    }
