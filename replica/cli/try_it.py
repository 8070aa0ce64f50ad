"""`notary try`: a first transaction against a running notary, with each step shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replica.cli.common import ConfigChoice, JsonOption, find_config, load, out, print_json, run
from replica.cli.ledger import CaOption, CertificateOption, EndpointOption, TokenOption, make_client
from replica.cli.sign import KeyOption, PartyOption, find_party
from replica.notary.errors import ConfigError
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from ledger_api.client import NotaryClient, Party

DEADLINE_S = 20.0  # a fail-over that is under way ends sooner

ClientKeyOption = Annotated[
    Path | None,
    typer.Option("--client-key-file", envvar="NOTARY_CLIENT__KEY_FILE", help="PEM of the certificate's private key."),
]
NotaryKeyOption = Annotated[
    str | None,
    typer.Option("--notary-key", help="The notary's public key, 64 hexadecimal digits; else the configuration's."),
]


def try_it(
    *,
    key: KeyOption = None,
    party: PartyOption = None,
    notary_key: NotaryKeyOption = None,
    endpoint: EndpointOption = None,
    config: ConfigChoice = None,
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    certificate_file: CertificateOption = None,
    client_key_file: ClientKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Notarise a sample: show request, answer, receipt and its verification, then try to spend the same state twice.

    Consumes a random state that nobody else has. Exit code 0: notarised, verified, and the second attempt refused.
    """
    signer = find_party(key, party, config)
    client = make_client(
        endpoint,
        config,
        DEADLINE_S,
        token_file=token_file,
        ca_file=ca_file,
        certificate_file=certificate_file,
        key_file=client_key_file,
    )
    found = run(_play(client, signer, notary_key or _configured_key(config, needed=endpoint is None)))
    if as_json:
        print_json(found)
    else:
        _show(found)
    raise typer.Exit(EXIT_OK if found["verified"] and found["second"]["code"] == "STATE_CONFLICT" else EXIT_FAILED)


def _configured_key(config: Path | None, *, needed: bool) -> str | None:
    """The notary's key of a configuration that is near; None where there is none to read. Raises ConfigError when it is
    `needed`."""
    try:
        return load(find_config(config)).notary_signer().public_key.hex()
    except ConfigError:
        if needed or config is not None:
            raise
        return None


async def _play(client: NotaryClient, party: Party, notary_key: str | None) -> dict[str, Any]:
    """Two transactions that consume one state. `notary_key` None: that of the API.

    Raises what the client raises: OutcomeUnknown when nobody answers, RequestRejected for a party that is not known.
    """
    import msgspec

    from ledger_api.client import certifies, encode_submission, success_of
    from ledger_api.wire.answers import answer_to_document
    from ledger_api.wire.problems import ProblemDocument

    state = f"{os.urandom(32).hex()}:0"
    async with client:
        user_id = await client.user_id()
        described = await client.describe()
        party = party.for_ledger(described.ledger_id)
        first, second = (party.sign(inputs=[state], user_id=user_id) for _ in range(2))
        success = success_of(await client.submit(first))
        refused = await client.submit(second)
        used_key = notary_key or described.notary_key
    answer = msgspec.to_builtins(answer_to_document(success))
    shown = refused if isinstance(refused, ProblemDocument) else answer_to_document(refused)
    return {
        "request": msgspec.json.decode(encode_submission(first)),
        "receipt": answer.pop("receipt"),  # where `notary verify` looks for it
        "answer": answer,
        "notary_key": used_key,
        "notary_key_from": "the API itself: ask the operator for it"
        if notary_key is None
        else "configuration or option",
        "verified": certifies(success, first, used_key),
        "second": msgspec.to_builtins(shown),
    }


def _show(found: dict[str, Any]) -> None:
    answer, receipt = found["answer"], found["receipt"]
    _part("request, signed with the party's key", json.dumps(found["request"], indent=2))
    _part(f"answer: notarised at log offset {answer['log_offset']}", json.dumps(answer, indent=2))
    _part("receipt: the notary's signature, a proof without network", json.dumps(receipt, indent=2))
    verdict = "valid" if found["verified"] else "NOT VALID"
    _part("verification", f"{verdict} by the notary's key\n{found['notary_key']}\n({found['notary_key_from']})")
    second = found["second"]
    _part("a second transaction that consumes the same state", f"{second['code']}: {second.get('detail', '')}")


def _part(title: str, text: str) -> None:
    out.print(f"[bold]{title}[/]")
    out.print(f"{text}\n", markup=False)
