"""Calls of a replica's admin listener, from its own machine."""

from __future__ import annotations

from http import HTTPStatus
from typing import TypeVar

import aiohttp
import msgspec

from replica.config.model import Config
from replica.notary.errors import Code, ConfigError
from replica.notary.untrusted import UNREADABLE
from replica.operators.admin import Refusal

AnswerT = TypeVar("AnswerT")


async def ask_admin(
    session: aiohttp.ClientSession, config: Config, name: str, call: msgspec.Struct, kind: type[AnswerT], *, path: str
) -> AnswerT:
    """The answer of one replica. Raises ConfigError when it cannot be called from here, or refuses."""
    listener = config.admin_url(name)
    if listener is None:
        raise ConfigError(f"{name} has no admin_port, so it cannot be steered")
    url = listener + path
    body = msgspec.json.encode(call)
    try:
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            content = await answer.read()
            if answer.status != HTTPStatus.OK:
                refusal = msgspec.json.decode(content, type=Refusal)
                raise ConfigError(f"{name}: {refusal.detail} ({refusal.code})", Code.NOT_POSSIBLE_NOW)
            return msgspec.json.decode(content, type=kind)
    except (aiohttp.ClientError, OSError, *UNREADABLE) as error:
        raise ConfigError(
            f"{name}'s admin listener does not answer on {url} ({error})", Code.REPLICA_UNREACHABLE
        ) from None
