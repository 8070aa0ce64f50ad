"""`notary submit` and `notary completions`: the ledger API from a shell, through the client library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, err, find_config, load, run
from replica.notary.errors import BadRequest, ConfigError
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from ledger_api.client import Access, NotaryClient, Result
    from replica.config.client import ClientSettings
    from replica.notary.requests import Submission

GIVE_UP_S = 120.0
SUBMISSIONS_MAX = 100_000  # in one file: all are held in memory

FileArgument = Annotated[
    typer.FileBinaryRead,
    typer.Argument(help="Signed submissions as JSON, one a line, as the API takes them; '-': standard input."),
]
EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        help="URL of the ledger API, or of several: https://a:8080,b:8080; else that of the configuration.",
    ),
]
NotaryKeyOption = Annotated[
    str | None,
    typer.Option("--notary-key", help="Check every receipt by this key, 64 hexadecimal digits."),
]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="NOTARY_CLIENT__TOKEN_FILE", help="File with the token to show, mode 0600."),
]
CaOption = Annotated[
    Path | None,
    typer.Option("--ca-file", envvar="NOTARY_CLIENT__CA_FILE", help="PEM of the authorities that vouch for the API."),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option("--certificate-file", envvar="NOTARY_CLIENT__CERTIFICATE_FILE", help="PEM of this client's own."),
]
KeyOption = Annotated[
    Path | None,
    typer.Option("--key-file", envvar="NOTARY_CLIENT__KEY_FILE", help="PEM of its private key, mode 0600."),
]
AfterOption = Annotated[int, typer.Option("--after", min=0, help="Begin after this ledger offset.")]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Go on for ever, across fail-overs.")]
UserOption = Annotated[str | None, typer.Option("--user", help="Only this user's.")]
PartyOption = Annotated[list[str] | None, typer.Option("--party", help="Only what acts as this party; may be repeated")]


def submit(
    file: FileArgument,
    *,
    endpoint: EndpointOption = None,
    config: ConfigChoice = None,
    notary_key: NotaryKeyOption = None,
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    certificate_file: CertificateOption = None,
    key_file: KeyOption = None,
) -> None:
    """Submit signed requests and print one answer a line, in order. Sends again by itself until each is final.

    Exit code 0: all were notarised. 1: some were not, or have no final answer; run it again with the same file.
    """
    import msgspec

    from ledger_api.wire.answers import answer_to_document
    from ledger_api.wire.problems import ProblemDocument
    from replica.notary.answers import Notarised
    from replica.notary.signatures import notary_key_from_hex

    try:
        submissions = _read(file.read().splitlines())
        key = None if notary_key is None else notary_key_from_hex("--notary-key", notary_key)
    except BadRequest as error:
        raise ConfigError(error.detail) from None
    client = make_client(
        endpoint,
        config,
        token_file=token_file,
        ca_file=ca_file,
        certificate_file=certificate_file,
        key_file=key_file,
    )
    results = run(_submit(client, submissions))
    good = 0
    for submission, result in zip(submissions, results, strict=True):
        document = result if isinstance(result, ProblemDocument) else answer_to_document(result)
        typer.echo(msgspec.json.encode(document).decode())
        good += isinstance(result, Notarised) and _verified(result, submission, key)
    err.print(f"{good:,} of {len(results):,} notarised" + ("" if key is None else " and verified"))
    raise typer.Exit(EXIT_OK if good == len(results) else EXIT_FAILED)


def completions(
    *,
    endpoint: EndpointOption = None,
    config: ConfigChoice = None,
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    certificate_file: CertificateOption = None,
    key_file: KeyOption = None,
    after: AfterOption = 0,
    follow: FollowOption = False,
    user: UserOption = None,
    party: PartyOption = None,
) -> None:
    """Print completions, one JSON document a line, in ledger order; `--follow` goes on as new ones come.

    The offset of the last line is where to go on: `--after` it, on any replica.
    """
    client = make_client(
        endpoint,
        config,
        token_file=token_file,
        ca_file=ca_file,
        certificate_file=certificate_file,
        key_file=key_file,
    )
    run(_print_completions(client, after, follow, user, party or []))


def make_client(
    endpoint: str | None, config: Path | None, deadline_s: float = GIVE_UP_S, **named: Path | None
) -> NotaryClient:
    """A client of the endpoint that is named, else of the configured one; so is each file. Raises ConfigError."""
    from ledger_api.client import NotaryClient, RetryPolicy
    from replica.config.client import ClientSettings

    if endpoint is None:
        configured = load(find_config(config))
        endpoint, settings = configured.endpoint_url, configured.client
    else:
        settings = ClientSettings()
    settings = settings.model_copy(update={name: path for name, path in named.items() if path is not None})
    return NotaryClient(endpoint, RetryPolicy(deadline_s=deadline_s), access=access_of(settings))


def access_of(settings: ClientSettings) -> Access:
    """What a client takes."""
    from ledger_api.client import Access

    return Access(
        token=settings.token_file,
        ca_file=settings.ca_file,
        certificate_file=settings.certificate_file,
        key_file=settings.key_file,
    )


def _read(lines: list[bytes]) -> list[Submission]:
    """The submissions. Raises BadRequest naming the line that is none."""
    import os

    import msgspec

    from ledger_api.wire.repeated_keys import check_submission
    from ledger_api.wire.submissions import SubmissionDocument, submission_from_document
    from replica.notary.untrusted import UNREADABLE

    decoder = msgspec.json.Decoder(SubmissionDocument)
    if len(lines) > SUBMISSIONS_MAX:
        raise BadRequest(f"{len(lines):,} lines, the limit is {SUBMISSIONS_MAX:,}: split the file")
    submissions = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                document = decoder.decode(line)
                check_submission(line, document)
                submissions.append(submission_from_document(document, lambda: os.urandom(16).hex()))
            except (*UNREADABLE, BadRequest) as error:
                raise BadRequest(f"line {number} is no submission: {error}") from None
    return submissions


async def _submit(client: NotaryClient, submissions: list[Submission]) -> list[Result]:
    async with client:
        return await client.submit_all(submissions)


def _verified(result: object, submission: Submission, key: bytes | None) -> bool:
    from ledger_api.client import certifies
    from replica.notary.answers import Notarised

    return key is None or (isinstance(result, Notarised) and certifies(result, submission, key))


async def _print_completions(
    client: NotaryClient, after: int, follow: bool, user: str | None, parties: list[str]
) -> None:
    import msgspec

    async with client:
        if not follow:
            async for raw in client.published(after, user_id=user, parties=parties):
                typer.echo(raw.decode())
            return
        async for completion in client.completions(after, user_id=user, parties=parties):
            typer.echo(msgspec.json.encode(completion).decode())
