"""The OpenAPI 3.1 document of the API, made from its routes and from the types that they take and answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from ledger_api.server.replies import PROBLEM
from ledger_api.server.routes import About, Parameter, Right, Route
from ledger_api.wire.answers import AcceptedDocument, NotarisedDocument, WaitDocument
from ledger_api.wire.feed import CompletionDocument, UpdateDocument
from ledger_api.wire.problems import ProblemDocument
from ledger_api.wire.submissions import SubmissionDocument
from replica.notary.codes import Code

REF = "#/components/schemas/{name}"
TOKEN_SCHEME = "token"  # noqa: S105 (a name in the document)
Schema = dict[str, Any]

_NAMED = (  # parts that are kept raw, and lines
    SubmissionDocument,
    NotarisedDocument,
    AcceptedDocument,
    ProblemDocument,
    WaitDocument,
    CompletionDocument,
    UpdateDocument,
)
_ALWAYS = (Code.WRONG_HOST, Code.HTTP_MALFORMED, Code.INTERNAL)
_WITH_BODY = (
    Code.MALFORMED_JSON,
    Code.BODY_TOO_LARGE,
    Code.BODY_TOO_SLOW,
    Code.MEDIA_TYPE_UNSUPPORTED,
    Code.NOT_ACTIVE,
    Code.SERVICE_PAUSED,
    Code.OVERLOADED,
)
_WITH_TOKEN = (Code.TOKEN_MISSING, Code.TOKEN_INVALID, Code.PERMISSION_DENIED, Code.RATE_EXCEEDED)
_REQUEST_ID = {"X-Request-Id": {"description": "Correlation id of the call.", "schema": {"type": "string"}}}
_RETRY_AFTER = {
    "Retry-After": {"description": "Whole seconds; the body has the exact figure.", "schema": {"type": "integer"}}
}
_CHALLENGE = {
    "WWW-Authenticate": {"description": "`Bearer`, when it is the token that is refused.", "schema": {"type": "string"}}
}


def make_openapi(routes: Iterable[Route], version: str, *, asks_for_tokens: bool) -> Schema:
    """The document that describes these routes as one replica serves them; `version` is the release."""
    routes = list(routes)
    components = _Components(routes)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Notary ledger API",
            "version": version,
            "description": "Notarises transactions, once and for ever. A success is final. After a problem with "
            '`"retry": "no"` the same request is answered the same until something changes, and is never notarised if '
            'the catalogue calls the code final; with `"retry": "same"`, send the same again, with the same ids. '
            "The bytes that a request's signature covers are described in docs/formats.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            route.path: {route.method.lower(): _operation(route, components, asks_for_tokens)} for route in routes
        },
        "components": {
            "schemas": components.schemas,
            "securitySchemes": {
                TOKEN_SCHEME: {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "Needed where the replica is configured with `api.tokens`; see docs/security.md.",
                }
            },
        },
    }


class _Components:
    """The JSON Schema of every type that a route names, and the reference to each."""

    def __init__(self, routes: Iterable[Route]) -> None:
        types: list[Any] = list(_NAMED)
        for route in routes:
            about = route.about
            kinds = (about.body, about.lines, *about.answers.values())
            types += [kind for kind in kinds if kind is not None and not isinstance(kind, str)]
        self._types = list(dict.fromkeys(types))
        schemas, self.schemas = msgspec.json.schema_components(self._types, ref_template=REF)
        self._references = dict(zip(self._types, schemas, strict=True))

    def of(self, kind: object) -> Schema:
        """The schema of one of the types."""
        return dict(self._references[kind])


def problems_of(route: Route) -> list[Code]:
    """Every problem that a route may answer with, each once, by status."""
    codes = [*_ALWAYS, *route.about.codes]
    if route.method == "POST":
        codes += _WITH_BODY
    if route.about.right is not Right.NONE:
        codes += _WITH_TOKEN
    return sorted(dict.fromkeys(codes), key=lambda code: code.status)


def _operation(route: Route, components: _Components, asks_for_tokens: bool) -> Schema:
    about = route.about
    operation: Schema = {
        "operationId": _operation_id(route),
        "summary": about.summary,
        "parameters": [_REQUEST_ID_PARAMETER, *_parameters(about)],
        "responses": _responses(route, components),
        "x-right": about.right.value,
        "security": _security(about.right, asks_for_tokens),
    }
    if about.body is not None:
        content = {"application/json": {"schema": components.of(about.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _security(right: Right, asks_for_tokens: bool) -> list[Schema]:
    """A replica without `api.tokens` takes every call, with or without a token."""
    if right is Right.NONE:
        return [{}]
    return [{TOKEN_SCHEME: []}] if asks_for_tokens else [{}, {TOKEN_SCHEME: []}]


def _operation_id(route: Route) -> str:
    words = [word.strip("{}") for word in route.path.split("/")[2:]]
    return "_".join([route.method.lower(), *words]).replace("-", "_").replace(".", "_")


_REQUEST_ID_PARAMETER: Schema = {
    "name": "X-Request-Id",
    "in": "header",
    "required": False,
    "description": "Correlation id: 1 to 64 letters, digits and `._:/+=-`; another one is replaced.",
    "schema": {"type": "string"},
}


def _parameters(about: About) -> list[Schema]:
    parameters = [_parameter(parameter, "query") for parameter in about.parameters]
    if about.argument is not None:
        parameters.append(_parameter(about.argument, "path"))
    return parameters


def _parameter(parameter: Parameter, where: str) -> Schema:
    schema: Mapping[str, object] = parameter.schema
    if parameter.repeated:
        schema = {"type": "array", "items": schema}
    described = {"name": parameter.name, "in": where, "required": where == "path", "schema": schema}
    return described | {"description": parameter.description}


def _responses(route: Route, components: _Components) -> Schema:
    responses = {
        str(status): _success(status, kind, route.about, components) for status, kind in route.about.answers.items()
    }
    codes = problems_of(route)
    for status in dict.fromkeys(code.status for code in codes):
        responses[str(status)] = _problem([code for code in codes if code.status == status], components)
    return responses


def _success(status: int, kind: object, about: About, components: _Components) -> Schema:
    content: Schema = {}
    if isinstance(kind, str):  # a media type that is no JSON of ours
        content[kind] = {}
    elif kind is not None:
        content["application/json"] = {"schema": components.of(kind)}
    if about.lines is not None:
        line = components.of(about.lines)
        content["application/x-ndjson"] = {"x-line-schema": line}
        content["text/event-stream"] = {"x-data-schema": line}
    if about.progress:
        kinds = (WaitDocument, kind, ProblemDocument)
        content["application/x-ndjson"] = {"x-line-schema": {"anyOf": [components.of(kind) for kind in kinds]}}
    return {"description": HTTPStatus(status).phrase, "headers": _REQUEST_ID, "content": content}


def _problem(codes: list[Code], components: _Components) -> Schema:
    names = [code.name for code in codes]
    schema = {"allOf": [components.of(ProblemDocument), {"properties": {"code": {"enum": names}}}]}
    return {
        "description": "; ".join(f"`{code.name}`: {code.title}" for code in codes),
        "headers": _REQUEST_ID | _RETRY_AFTER | (_CHALLENGE if Code.TOKEN_MISSING in codes else {}),
        "content": {PROBLEM.decode(): {"schema": schema}},
    }
