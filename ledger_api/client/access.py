"""How a client and the ledger API authenticate: a bearer token, which may be renewed, and TLS certificates."""

from __future__ import annotations

import asyncio
import inspect
import re
import ssl
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from yarl import URL

from ledger_api.client.errors import TokenUnavailable
from ledger_api.wire.problems import ProblemDocument
from ledger_api.wire.submissions import ANONYMOUS
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.notary.loopback import is_loopback
from replica.notary.secret_files import check_secret

TOKEN_MAX_CHARACTERS = 8_192
TOKEN_CODES = frozenset({Code.TOKEN_MISSING.name, Code.TOKEN_INVALID.name})
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")

Token = str | Path | Callable[[], str | Awaitable[str]]
"""A token; a file that holds one, mode 0600; or what returns one, or an awaitable of one, each time it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The credentials that a client presents, and the certificates that it trusts.

    `token`: a token file is read again when it changes; a function is called again when the API refuses the token that
    it returned. `ca_file`: the authorities that may sign the server's certificate (PEM; default: the machine's own).
    `certificate_file` and `key_file` (PEM; mode 0600 for the key): for an API that requires client certificates. These
    three files are read when a client is made.
    """

    token: Token | None = field(default=None, repr=False)
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def tls_for_all(self, endpoints: Sequence[str]) -> ssl.SSLContext | bool:
        """The TLS settings of connections to several endpoints of one scheme. Raises ConfigError as `tls_for` does."""
        first, *_ = [self.tls_for(endpoint) for endpoint in endpoints]
        return first

    def tls_for(self, endpoint: str) -> ssl.SSLContext | bool:
        """The TLS settings of connections to an endpoint, as aiohttp takes them.

        Raises ConfigError if the endpoint is no URL of the API, a file cannot be used, or a token would travel
        unencrypted.
        """
        try:
            url = URL(endpoint)
        except ValueError as error:
            raise ConfigError(f"the endpoint is no URL: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigError(f"the endpoint {endpoint!r} is not like https://notary.example:8080")
        files = (self.ca_file, self.certificate_file, self.key_file)
        if url.scheme == "https":
            return self._context() if any(files) else True
        if any(files):
            raise ConfigError(f"{endpoint} is plain HTTP: the certificates would protect nothing")
        if self.token is not None and not is_loopback(url.host):
            raise ConfigError(f"a token for {endpoint} would be sent in the clear: use https", Code.PLAINTEXT_EXPOSED)
        return True

    def _context(self) -> ssl.SSLContext:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ConfigError("a client's certificate and its key go together")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None and self.key_file is not None:
                check_secret(self.key_file)
                context.load_cert_chain(self.certificate_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the client's certificates cannot be used: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


class _Claims(msgspec.Struct):
    sub: str


_claims_decoder = msgspec.json.Decoder(_Claims)

OPEN = Access()
"""For an API without tokens and client certificates."""


class Bearer:
    """The token in force of one client. Nothing here logs it, and no error has it in its text."""

    def __init__(self, source: Token | None) -> None:
        """Raises ConfigError when the source is a text that is no token."""
        self._source = source
        self._token = None if source is None or not isinstance(source, str) else _checked(source, "the token")
        self._stamp: tuple[int, int, int] | None = None  # of the file, when it was read
        self._rounds = 0
        self._asking = asyncio.Lock()
        self._trouble = "there is no other one"

    @property
    def can_renew(self) -> bool:
        """Whether there may be another token later."""
        return isinstance(self._source, Path) or callable(self._source)

    async def token(self) -> str | None:
        """The token to send now; None for a client without one.

        Raises ConfigError or TokenUnavailable while there has never been one; later the last good one stays.
        """
        if isinstance(self._source, Path) and self._token is not None and _stamp(self._source) != self._stamp:
            await self.renew(self._token)
        elif self._token is None and self._source is not None:
            async with self._asking:
                self._token = self._token or await self._ask()
        return self._token

    async def renew(self, refused: str | None) -> bool:
        """Replace a refused token; returns whether there is another one now. Concurrent calls are safe."""
        rounds = self._rounds
        async with self._asking:
            if self._token == refused and self._rounds == rounds and self.can_renew:
                try:
                    self._token = await self._ask()
                    self._trouble = "the same one was given again"
                except (ConfigError, TokenUnavailable) as error:
                    self._trouble = error.detail
                self._rounds += 1
        return self._token != refused

    async def outlives(self, problem: ProblemDocument, token: str | None, was_good: bool) -> bool:
        """Whether to retry after a problem: only the token was refused, and another one exists or may arrive soon.

        `was_good`: this client's token was valid a moment ago, so a new one may arrive soon.
        """
        return problem.code in TOKEN_CODES and (await self.renew(token) or (was_good and self.can_renew))

    def explain(self, problem: ProblemDocument) -> ProblemDocument:
        """The problem. If it is a refused token, the reason why there is no other one is added."""
        if problem.code not in TOKEN_CODES or self._source is None:
            return problem
        return msgspec.structs.replace(problem, detail=f"{problem.detail} ({self._trouble})")

    async def _ask(self) -> str:
        if isinstance(self._source, Path):
            self._stamp = _stamp(self._source)
            return read_token(self._source)
        assert callable(self._source)
        try:
            given = self._source()
            token = await given if inspect.isawaitable(given) else given
        except Exception as error:  # the application's own code: it may raise anything, and its text may be secret
            raise TokenUnavailable(f"what gives the token raised {type(error).__name__}") from error
        try:
            return _checked(token, "what was given as a token")
        except ConfigError as error:
            raise TokenUnavailable(error.detail) from None


def user_of(token: str | None) -> str:
    """The user to sign for: the token's `sub`, which the API verifies and this does not; ANONYMOUS without a token.

    Raises ConfigError for a token that names no user.
    """
    if token is None:
        return ANONYMOUS
    _, _, rest = token.partition(".")
    claims, _, _ = rest.partition(".")
    try:
        return _claims_decoder.decode(urlsafe_b64decode(claims + "=" * (-len(claims) % 4))).sub
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise ConfigError("the token is no JSON Web Token with a user (sub): ask its issuer for one") from None


def headers_with(token: str | None, headers: dict[str, str]) -> dict[str, str]:
    """The headers, and the header that carries the token."""
    return headers if token is None else {**headers, "Authorization": f"Bearer {token}"}


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_token(path: Path) -> str:
    """The token in a file. Raises ConfigError: KEY_UNSAFE if others can read it."""
    check_secret(path)
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(TOKEN_MAX_CHARACTERS + 2)
    except (OSError, ValueError):
        raise ConfigError(f"{path} cannot be read, or holds no token") from None
    return _checked(text.strip(), str(path))


def _checked(token: object, origin: str) -> str:
    """The token, if a header may contain it. No error contains its text."""
    if not isinstance(token, str) or len(token) > TOKEN_MAX_CHARACTERS or not _TOKEN.fullmatch(token):
        raise ConfigError(f"{origin} is no token: one word, at most {TOKEN_MAX_CHARACTERS} characters")
    return token
