"""Identifies callers by bearer tokens. Verifies each token once, and keeps the keys for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import aiohttp
import structlog
from aiohttp import web
from joserfc.jwk import KeySet

from ledger_api.server.authorisation import EVERYBODY, Caller, Revocations
from ledger_api.server.settings import TokenSettings
from ledger_api.server.tokens import KeyUnknown, check_token, parse_keys, read_keys, read_revoked, token_in
from replica.notary.errors import ConfigError

REMEMBERED_MAX = 4_096  # tokens; about 1 kB each
JWKS_MAX_BYTES = 256 * 1024
JWKS_ANSWER_MAX_S = 5.0
_REFETCH_PAUSE_S = 5.0  # an unknown key causes a fetch of the keys, but a flood of such tokens must not
_log = structlog.get_logger(__name__)

Fetch = Callable[[str], Awaitable[str]]


class Authentication(Protocol):
    """Identifies the caller. Calls of routes that need no right are not identified."""

    def remembered(self, request: web.BaseRequest) -> Caller | None:
        """The caller, if it is known without a check; None otherwise."""

    async def identify(self, request: web.BaseRequest) -> Caller:
        """The caller. Raises BadRequest: TOKEN_MISSING, TOKEN_INVALID."""


class NoAuthentication:
    """Identifies every caller as `EVERYBODY`, for an API without tokens."""

    def remembered(self, request: web.BaseRequest) -> Caller | None:
        """EVERYBODY."""
        return EVERYBODY

    async def identify(self, request: web.BaseRequest) -> Caller:
        """EVERYBODY."""
        return EVERYBODY

    def reload(self) -> None:
        """Nothing to read."""

    async def keep_fresh(self) -> None:
        """Nothing to fetch."""


class TokenAuthentication:
    """Checks tokens. A checked token is remembered by its text, until it expires or the keys change."""

    def __init__(
        self,
        settings: TokenSettings,
        *,
        now_s: Callable[[], float] = time.time,
        fetch: Fetch | None = None,
        age_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now_s`: Unix time, as tokens have it. `age_s` counts whatever the clock does. `fetch` gets a JWKS by its
        address. Raises ConfigError for a bad file."""
        self._age_s = age_s
        self._settings = settings
        self._now_s = now_s
        self._fetch = fetch or fetch_jwks
        self._keys = KeySet([]) if settings.keys_file is None else read_keys(settings.keys_file)
        revoked = _revoked(settings)
        self._revocations = None if revoked is None else Revocations(revoked)
        self._remembered: dict[str, Caller] = {}
        self._fetched_at_s = float("-inf")
        self._fetching = asyncio.Lock()

    def remembered(self, request: web.BaseRequest) -> Caller | None:
        """The caller, when this very token was checked before and is still valid."""
        caller = self._remembered.get(request.headers.get("Authorization", ""))
        if caller is None or caller.left_s(self._now_s()) <= 0:
            return None
        return caller

    async def identify(self, request: web.BaseRequest) -> Caller:
        """Check the token."""
        header = request.headers.get("Authorization")
        token = token_in(header)
        try:
            caller = self._check(token)
        except KeyUnknown:
            if not await self._fetch_again(_REFETCH_PAUSE_S):
                raise
            caller = self._check(token)
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[header or ""] = caller
        return caller

    def reload(self) -> None:
        """Read keys and revoked tokens again; tokens are checked again. Raises ConfigError: then the old ones stay."""
        settings = self._settings
        revoked = _revoked(settings)
        if settings.keys_file is not None:
            self._use(read_keys(settings.keys_file))
        if revoked is not None and self._revocations is not None:
            self._revocations.ids = revoked  # for callers whose streams are open, too

    async def keep_fresh(self) -> None:
        """Fetch the keys again and again, until cancelled; returns at once when they are in a file."""
        while self._settings.jwks_url is not None:
            await self._fetch_again(0.0)
            await asyncio.sleep(self._settings.jwks_refresh_s)

    def _check(self, token: str) -> Caller:
        return check_token(token, self._keys, self._settings, self._now_s(), self._revocations)

    def _use(self, keys: KeySet) -> None:
        self._keys = keys
        self._remembered.clear()

    async def _fetch_again(self, pause_s: float) -> bool:
        """Fetch the keys, if the last fetch is `pause_s` ago. Returns whether the keys are newer than at the call."""
        url = self._settings.jwks_url
        if url is None:
            return False
        asked_at_s = self._age_s()
        async with self._fetching:
            if self._fetched_at_s > asked_at_s:
                return True  # another call has fetched them
            if asked_at_s - self._fetched_at_s < pause_s:
                return False
            self._fetched_at_s = self._age_s()
            try:
                keys = parse_keys(await self._fetch(url), url)
            except (ConfigError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                _log.warning("token_keys_not_fetched", url=url, detail=str(error))
                return False
        self._use(keys)
        return True


async def fetch_jwks(url: str) -> str:
    """The text at an https address. Raises ClientError, TimeoutError, or ValueError when it is too long."""
    timeout = aiohttp.ClientTimeout(total=JWKS_ANSWER_MAX_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, allow_redirects=False, raise_for_status=True) as answer,
    ):
        raw = await answer.content.read(JWKS_MAX_BYTES + 1)
    if len(raw) > JWKS_MAX_BYTES:
        raise ValueError(f"a JWKS has at most {JWKS_MAX_BYTES} bytes")
    return raw.decode()


def make_authentication(settings: TokenSettings | None) -> NoAuthentication | TokenAuthentication:
    """The authentication that the settings ask for. Raises ConfigError."""
    return NoAuthentication() if settings is None else TokenAuthentication(settings)


def _revoked(settings: TokenSettings) -> frozenset[str] | None:
    return None if settings.revoked_file is None else read_revoked(settings.revoked_file)
