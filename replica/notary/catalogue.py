"""The error catalogue as a document, for clients and people. It is made from `Code`, so the two always agree."""

from __future__ import annotations

from enum import Enum
from http import HTTPStatus

import msgspec

from replica.notary.codes import Code, Retry

_ACCESS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_MISSING = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
_REFUSED = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class Category(Enum):
    """The category of a code: who can correct the error."""

    REQUEST = "request"  # the caller sent something wrong: change it
    ACCESS = "access"  # the caller is not known, or may not: ask the operator
    MISSING = "missing"  # what was asked for is not there
    REFUSED = "refused"  # a verdict on this submission; `final` says whether the same request may get another
    NOT_NOW = "not_now"  # nothing is decided or known: send the same again, later
    INTERNAL = "internal"  # an error of the replica's own
    OPERATOR = "operator"  # never leaves the replica: configuration and start-up


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One code: what it means, what to do, and whether the very same request may be sent again.

    `final`: the same content will never be notarised under the same transaction id after it.
    """

    code: str
    category: Category
    status: int
    retry: Retry
    final: bool
    title: str
    remedy: str


class CatalogueDocument(msgspec.Struct, frozen=True):
    """Every code that an application can meet. Codes never change their meaning and are never removed."""

    codes: list[CatalogueEntry]


def category(code: Code) -> Category:
    """The category of a code: a function of its status and of whether to retry."""
    if code.status == 0:
        return Category.OPERATOR
    if code.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return Category.INTERNAL
    if code.retry is Retry.SAME:
        return Category.NOT_NOW
    if code.status in _ACCESS:
        return Category.ACCESS
    if code.status in _MISSING:
        return Category.MISSING
    return Category.REFUSED if code.status in _REFUSED else Category.REQUEST


def catalogue() -> CatalogueDocument:
    """The codes that leave the replica, in the order in which they are declared."""
    return CatalogueDocument([_entry(code) for code in Code if code.status])


def _entry(code: Code) -> CatalogueEntry:
    return CatalogueEntry(
        code=code.name,
        category=category(code),
        status=code.status,
        retry=code.retry,
        final=code.final,
        title=code.title,
        remedy=code.remedy,
    )
