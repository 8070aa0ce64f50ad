"""`notary submit` and `notary completions`: the ledger API from a shell, through the client library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import EXIT_FAILED, EXIT_OK, ConfigChoice, err, find_config, load, run
from replica.notary.errors import BadRequest, ConfigError

if TYPE_CHECKING:
    from ledger_api.client import Result
    from replica.notary.requests import Submission

GIVE_UP_S = 120.0
SUBMISSIONS_MAX = 100_000  # in one file: all are held in memory

FileArgument = Annotated[
    typer.FileBinaryRead,
    typer.Argument(help="Signed submissions as JSON, one a line, as the API takes them; '-': standard input."),
]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint", help="URL of the ledger API; else that of the configuration.")
]
NotaryKeyOption = Annotated[
    str | None,
    typer.Option("--notary-key", help="Check every receipt by this key, 64 hexadecimal digits."),
]
AfterOption = Annotated[int, typer.Option("--after", min=0, help="Begin behind this ledger offset.")]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Go on for ever, across fail-overs.")]
UserOption = Annotated[str | None, typer.Option("--user", help="Only this user's.")]
PartyOption = Annotated[list[str] | None, typer.Option("--party", help="Only what acts as this party; may be repeated")]


def submit(
    file: FileArgument,
    *,
    endpoint: EndpointOption = None,
    config: ConfigChoice = None,
    notary_key: NotaryKeyOption = None,
) -> None:
    """Submit signed requests and print one answer a line, in order. Sends again by itself until each is final.

    Exit code 0: all were notarised. 1: some were not, or have no final answer; run it again with the same file.
    """
    import msgspec

    from replica.notary.answers import Notarised
    from replica.notary.documents import ProblemDocument, answer_to_document, bytes_from_hex

    try:
        submissions = _read(file.read().splitlines())
        key = None if notary_key is None else bytes_from_hex("--notary-key", notary_key, 32)
    except BadRequest as error:
        raise ConfigError(error.detail) from None
    results = run(_submit(_url(endpoint, config), submissions))
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
    after: AfterOption = 0,
    follow: FollowOption = False,
    user: UserOption = None,
    party: PartyOption = None,
) -> None:
    """Print completions, one JSON document a line, in ledger order; `--follow` goes on as new ones come.

    The offset of the last line is where to go on: `--after` it, on any replica.
    """
    run(_print_completions(_url(endpoint, config), after, follow, user, party or []))


def _url(endpoint: str | None, config: Path | None) -> str:
    if endpoint is not None:
        return endpoint
    configured = load(find_config(config)).endpoint
    return f"http://{configured.host}:{configured.port}"


def _read(lines: list[bytes]) -> list[Submission]:
    """The submissions. Raises BadRequest naming the line that is none."""
    import os

    import msgspec

    from replica.notary.documents import SubmissionDocument, submission_from_document

    decoder = msgspec.json.Decoder(SubmissionDocument)
    if len(lines) > SUBMISSIONS_MAX:
        raise BadRequest(f"{len(lines):,} lines, the limit is {SUBMISSIONS_MAX:,}: split the file")
    submissions = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                submissions.append(submission_from_document(decoder.decode(line), lambda: os.urandom(16).hex()))
            except (msgspec.DecodeError, UnicodeDecodeError, BadRequest) as error:
                raise BadRequest(f"line {number} is no submission: {error}") from None
    return submissions


async def _submit(url: str, submissions: list[Submission]) -> list[Result]:
    from ledger_api.client import NotaryClient, RetryPolicy

    async with NotaryClient(url, RetryPolicy(deadline_s=GIVE_UP_S)) as client:
        return await client.submit_all(submissions)


def _verified(result: object, submission: Submission, key: bytes | None) -> bool:
    from ledger_api.client import certifies
    from replica.notary.answers import Notarised

    return key is None or (isinstance(result, Notarised) and certifies(result, submission, key))


async def _print_completions(url: str, after: int, follow: bool, user: str | None, parties: list[str]) -> None:
    import msgspec

    from ledger_api.client import NotaryClient, RetryPolicy

    async with NotaryClient(url, RetryPolicy(deadline_s=GIVE_UP_S)) as client:
        if not follow:
            async for raw in client.published(after, user_id=user, parties=parties):
                typer.echo(raw.decode())
            return
        async for completion in client.completions(after, user_id=user, parties=parties):
            typer.echo(msgspec.json.encode(completion).decode())
