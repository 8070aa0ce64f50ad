"""Calls of a replica's admin listener, a Unix socket on its machine."""

from __future__ import annotations

from http import HTTPStatus
from typing import TypeVar

import aiohttp
import msgspec

from replica.config.model import Config
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.socket_paths import check_socket_path
from replica.notary.untrusted import UNREADABLE
from replica.operators.admin import Refusal

AnswerT = TypeVar("AnswerT")


async def ask_admin(config: Config, name: str, call: msgspec.Struct, kind: type[AnswerT], *, path: str) -> AnswerT:
    """The answer of one replica. Raises ConfigError when it cannot be called from here, or refuses."""
    listener = config.admin_socket(name)
    check_socket_path(listener)
    body, headers = msgspec.json.encode(call), {"Content-Type": "application/json"}
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(listener))) as session,
            session.post(f"http://localhost{path}", data=body, headers=headers) as answer,
        ):
            content = await answer.read()
            if answer.status != HTTPStatus.OK:
                refusal = msgspec.json.decode(content, type=Refusal)
                raise ConfigError(f"{name}: {refusal.detail} ({refusal.code})", Code.NOT_POSSIBLE_NOW)
            return msgspec.json.decode(content, type=kind)
    except (aiohttp.ClientError, OSError, *UNREADABLE) as error:
        raise ConfigError(
            f"{name}'s admin listener does not answer at {listener}, on {config.replica(name).host}: {error}",
            Code.REPLICA_UNREACHABLE,
        ) from None
