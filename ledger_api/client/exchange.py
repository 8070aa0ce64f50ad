"""Reads answers from the network. Anything else that arrives raises one of a few errors, and never hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

import aiohttp
import msgspec

from ledger_api.client.errors import AnswerUnreadable

ANSWER_MAX_BYTES = 256 * 2**20  # of one answer: the largest body that a server may be set to take
LINE_MAX_BYTES = 16 * 2**20  # a completion with the conflicts of 10,000 states has some 2 MB
SILENCE_MAX_S = 30.0  # above the interval of the server's checkpoints: a server that is silent for so long is gone
QUOTE_MAX = 200
NO_ANSWER = (aiohttp.ClientError, AnswerUnreadable, TimeoutError, OSError, UnicodeError)  # the last: of a host's name
"""What an exchange may raise: the server is gone, or is none of ours. What was asked may have been done."""

Document = TypeVar("Document")
Document_co = TypeVar("Document_co", covariant=True)


class Decoder(Protocol[Document_co]):
    """msgspec's decoders of JSON and MessagePack."""

    def decode(self, raw: bytes, /) -> Document_co:
        """The document. Raises DecodeError, UnicodeDecodeError, RecursionError."""


def decode(decoder: Decoder[Document], raw: bytes) -> Document:
    """The document in the bytes. Raises AnswerUnreadable for anything else."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise AnswerUnreadable("the answer is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AnswerUnreadable(f"{error}: {raw[:QUOTE_MAX]!r}") from None


async def read_answer_body(response: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises AnswerUnreadable when it is too large to be an answer."""
    length = response.content_length
    if length is not None and length <= ANSWER_MAX_BYTES and "Content-Encoding" not in response.headers:
        return await response.read()  # the usual case, a few µs sooner
    return await read_body(response.content)


async def read_body(content: aiohttp.StreamReader, bytes_max: int | None = None) -> bytes:
    """As `read_answer_body`, for a body of unknown size; `bytes_max` None: ANSWER_MAX_BYTES."""
    limit = ANSWER_MAX_BYTES if bytes_max is None else bytes_max
    chunks: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        size += len(chunk)
        if size > limit:
            raise AnswerUnreadable(f"an answer has at most {limit} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def read_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines as they arrive, without line ends. An incomplete last line is lost with the connection.

    Raises AnswerUnreadable for a line that is too long, TimeoutError for one that does not end.
    """
    loop = asyncio.get_running_loop()
    begun: list[bytes] = []
    size, begun_at_s = 0, 0.0
    async for chunk in content.iter_any():
        first, *others = chunk.split(b"\n")
        if not others:
            begun_at_s = begun_at_s if begun else loop.time()
            begun.append(first)
            size += len(first)
            if size > LINE_MAX_BYTES:
                raise AnswerUnreadable(f"a line has at most {LINE_MAX_BYTES} bytes")
            if loop.time() - begun_at_s > SILENCE_MAX_S:
                raise TimeoutError("a line does not end")
            continue
        yield b"".join([*begun, first])
        for line in others[:-1]:
            yield line
        begun, size, begun_at_s = [others[-1]] if others[-1] else [], len(others[-1]), loop.time()


def describe_failure(error: BaseException) -> str:
    """A failed exchange in words. Not its `repr`: aiohttp's has the headers, and so the token."""
    match error:
        case aiohttp.ClientSSLError():
            said = f"{type(error).__name__}: {error}"
        case aiohttp.ClientConnectorDNSError():
            said = f"the name of the host {error.host} is not known"
        case aiohttp.ClientConnectorError():
            said = f"nobody takes connections at {error.host}:{error.port}"
        case TimeoutError():
            said = str(error) or "no answer in time"
        case aiohttp.ServerDisconnectedError() | ConnectionError():
            said = "the connection ended before there was an answer"
        case _:
            said = f"{type(error).__name__}: {error}"
    return said[:QUOTE_MAX]
