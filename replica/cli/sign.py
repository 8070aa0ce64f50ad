"""`notary sign`: a signed submission as the API takes it, made from a party's key file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replica.cli.common import ConfigChoice, find_config, load, run
from replica.cli.ledger import TokenOption, make_client
from replica.notary.errors import BadRequest, ConfigError

if TYPE_CHECKING:
    from ledger_api.client import NotaryClient, Party
    from replica.notary.requests import TimeWindow

LOCAL_KEY = Path("parties") / "bank-1.key"  # beside the configuration: the first party of a local cluster

KeyOption = Annotated[
    Path | None,
    typer.Option("--key", help="The party's key file (`notary keys create`); else that of the local cluster's first."),
]
PartyOption = Annotated[
    str | None, typer.Option("--party", help="The party's name; else the one that a local cluster has for the key.")
]
StatesOption = Annotated[
    list[str] | None, typer.Option("--input", help="A state to consume, TX_ID:INDEX; may be repeated.")
]
ReferencesOption = Annotated[
    list[str] | None, typer.Option("--reference", help="A state that must be unspent and stays so; may be repeated.")
]
LedgerOption = Annotated[
    str | None,
    typer.Option("--ledger", help="The ledger's id, 32 hexadecimal digits; else the notary is asked for it."),
]
TxOption = Annotated[str | None, typer.Option("--tx-id", help="64 hexadecimal digits; else a random one.")]
FromOption = Annotated[str | None, typer.Option("--from", help="Not before this time, such as 2027-01-01T00:00:00Z.")]
UntilOption = Annotated[str | None, typer.Option("--until", help="Only before this time.")]
UserOption = Annotated[
    str | None,
    typer.Option(
        "--user", help="The submitting application; else the token's user (`sub`), or `anonymous` without one."
    ),
]
CommandOption = Annotated[str | None, typer.Option("--command-id", help="For deduplication; else the transaction id.")]
WithinOption = Annotated[float | None, typer.Option("--within", help="The deduplication period, seconds.")]
SubmissionOption = Annotated[str | None, typer.Option("--submission-id", help="This attempt; else a random one.")]


def sign(
    *,
    inputs: StatesOption = None,
    references: ReferencesOption = None,
    key: KeyOption = None,
    party: PartyOption = None,
    ledger: LedgerOption = None,
    tx_id: TxOption = None,
    from_: FromOption = None,
    until: UntilOption = None,
    user: UserOption = None,
    command_id: CommandOption = None,
    submission_id: SubmissionOption = None,
    within_s: WithinOption = None,
    token_file: TokenOption = None,
    config: ConfigChoice = None,
) -> None:
    """Sign a transaction, and print it as one line of JSON: the body of POST /v1/submissions.

    With --ledger it needs no network.
    Keep the line until its outcome is final. `notary submit -` reads it, and so does curl with --data-binary @-.
    """
    from ledger_api.client import Deduplication, encode_submission

    signer = find_party(key, party, config)
    named = ledger or run(_ledger_of(make_client(None, config)))
    if token_file is None and (config is not None or key is None or party is None):
        token_file = load(find_config(config)).client.token_file
    try:
        submission = signer.for_ledger(named).sign(
            tx_id,
            inputs or (),
            references or (),
            _window(from_, until),
            user_id=_token_user(token_file) if user is None else user,
            command_id=command_id,
            submission_id=submission_id,
            deduplication=None if within_s is None else Deduplication(within_s),
        )
    except BadRequest as error:
        raise ConfigError(error.detail) from None
    typer.echo(encode_submission(submission).decode())


async def _ledger_of(client: NotaryClient) -> str | None:
    async with client:
        return (await client.describe()).ledger_id


def _token_user(token_file: Path | None) -> str:
    """The user of the token in a file; `anonymous` without one. Raises ConfigError."""
    from ledger_api.client.access import read_token, user_of

    return user_of(None if token_file is None else read_token(token_file))


def find_party(key: Path | None, name: str | None, config: Path | None) -> Party:
    """The party that signs, for no ledger yet. What is not named comes from the configuration that `find_config` finds.

    Raises ConfigError.
    """
    from ledger_api.client import Party
    from replica.acting.party_file import PARTY_FILE
    from replica.notary.genesis import NO_LEDGER

    if key is None:
        key = find_config(config).parent / LOCAL_KEY
        if not key.exists():
            raise ConfigError(f"no local cluster has made {key}: name the party's key file with --key")
    party = Party.from_file(name or "", NO_LEDGER, key)
    if name:
        return party
    return replace(party, name=_name_in_file(party.public_key, find_config(config).with_name(PARTY_FILE)))


def _name_in_file(public_key: bytes, path: Path) -> str:
    """The one party that has a public key, by a local cluster's file. Raises ConfigError."""
    from replica.acting.party_file import read_party_file

    names = sorted({party for party, key in (read_party_file(path) if path.exists() else ()) if key == public_key})
    match names:
        case [name]:
            return name
        case []:
            raise ConfigError(f"{path} has no party with the key {public_key.hex()}: name it with --party")
        case _:
            raise ConfigError(f"{path} has several parties with this key, name one with --party: {'; '.join(names)}")


def _window(from_: str | None, until: str | None) -> TimeWindow | None:
    from replica.notary.requests import TimeWindow
    from replica.notary.texts import parse_time

    if from_ is None and until is None:
        return None
    return TimeWindow(*(None if end is None else parse_time(end) for end in (from_, until)))
