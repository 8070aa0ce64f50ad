"""`notary verify`: check a receipt offline, with nothing but the notary's public key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from replica.cli.common import JsonOption, out, print_json
from replica.notary.errors import BadRequest
from replica.notary.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replica.notary.keys import NotaryKey
    from replica.notary.receipts import Place, Receipt

RECEIPT_MAX_BYTES = 16 * 2**20  # a whole answer with conflicts has about 2
ReceiptArgument = Annotated[
    typer.FileBinaryRead,
    typer.Argument(help="JSON file with a receipt, or with a whole answer; '-' reads standard input."),
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--notary-key",
        help="A public key of the notary's, 64 hexadecimal digits, or 130 of ECDSA P-256; old ones as well.",
    ),
]
KeysOption = Annotated[
    Path | None, typer.Option("--notary-keys", help="File with the notary's public keys, old ones too.", exists=True)
]
LogIdOption = Annotated[
    str | None,
    typer.Option(
        "--log-id", help="Verify a proof of `notary log prove` instead: the log's id, as `notary log check` prints it."
    ),
]
RequestOption = Annotated[
    Path | None,
    typer.Option(
        "--request", help="The submission as JSON: the receipt must certify exactly its content.", exists=True
    ),
]


def verify(
    receipt: ReceiptArgument,
    *,
    notary_key: KeyOption = None,
    notary_keys: KeysOption = None,
    request: RequestOption = None,
    log_id: LogIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify that the notary certified a transaction id with its content. Needs no network.

    With --log-id: verify that a record stands at its place in the log with that id.

    Exit code 0: it did. 1: the receipt proves nothing of the kind. 2: a file is not what it should be.
    """
    if log_id is not None:
        _verify_place(receipt.read(RECEIPT_MAX_BYTES + 1), log_id, as_json)
    import msgspec

    from replica.notary.keys import NotaryKey, read_keys
    from replica.notary.receipts import verify_receipt
    from replica.notary.signatures import SCHEMES, algorithm_of, notary_key_from_hex

    try:
        found = _receipt(receipt.read(RECEIPT_MAX_BYTES + 1))
        keys = [NotaryKey(notary_key_from_hex("--notary-key", key).hex()) for key in notary_key or ()]
        keys += read_keys(notary_keys) if notary_keys else []
        if not keys:
            raise _unusable("name the notary's key: --notary-key, or a file of them: --notary-keys")
        problem = "" if any(verify_receipt(found, key.raw) for key in keys) else "it does not verify"
        if not problem and request is not None and _content(request) != (found.tx_id, found.content_digest):
            problem = "it certifies another transaction or other content than the request's"
    except BadRequest as error:
        raise _unusable(error.detail) from None
    if as_json:
        print_json(
            {
                "valid": not problem,
                "problem": problem,
                "tx_id": found.tx_id.hex(),
                "content_digest": found.content_digest.hex(),
                "version": found.version,
                "place": None if found.place is None else msgspec.structs.asdict(found.place),
                "notary_key": found.notary_key.hex(),
                "signature_scheme": SCHEMES[algorithm_of(found.notary_key)],
                "known_keys": [known.public_key for known in keys],
            }
        )
    else:
        verdict = f"[bold red]not valid[/]: {problem}" if problem else "[bold green]valid[/]"
        out.print(verdict)
        out.print(f"transaction  {found.tx_id.hex()}\ncontent      {found.content_digest.hex()}")
        if found.place is not None:
            _print_place(found.place)
        out.print(f"signature    {SCHEMES[algorithm_of(found.notary_key)]}")
        out.print(f"receipt's key\n             {_described(found.notary_key.hex(), keys)}")
        others = [key for key in keys if key.public_key != found.notary_key.hex()]
        if others:
            out.print("other keys that are trusted")
        for key in others:
            out.print(f"             {_described(key.public_key, keys)}")
    raise typer.Exit(EXIT_FAILED if problem else EXIT_OK)


def _verify_place(raw: bytes, log_id: str, as_json: bool) -> NoReturn:
    import msgspec

    from replica.log.raft.proof import LogProof, problem_of
    from replica.notary.untrusted import UNREADABLE

    try:
        proof = msgspec.json.decode(raw, type=LogProof)
    except UNREADABLE as error:
        raise _unusable(f"no proof of a place in the log: {error}") from None
    problem = problem_of(proof, log_id)
    entry = proof.record.entry
    if as_json:
        place = {"transaction_id": f"{entry.view}.{entry.idx}", "record": entry.body.hex()}
        print_json({"valid": problem is None, "problem": problem or "", **place})
    elif problem is not None:
        out.print(f"[bold red]not valid[/]: {problem}")
    else:
        out.print(f"[bold green]valid[/]: a record of {len(entry.body)} bytes stands at {entry.view}.{entry.idx}")
    raise typer.Exit(EXIT_OK if problem is None else EXIT_FAILED)


def _print_place(place: Place) -> None:
    """Where and when, as far as the receipt is valid."""
    from replica.notary.texts import format_time

    out.print(f"log          {place.log_id}\noffset       {place.log_offset}, under epoch {place.epoch}", markup=False)
    out.print(f"judged at    {format_time(place.judged_us)}")


def _described(public_key: str, trusted: Sequence[NotaryKey]) -> str:
    """A key, and the period in which it signed as far as the list of trusted keys has it."""
    found = next((key for key in trusted if key.public_key == public_key), None)
    if found is None:
        return f"{public_key}, which is not trusted here"
    ends = (("from", found.from_), ("until", found.until))
    return " ".join((public_key, *(f"{name} {end:%Y-%m-%dT%H:%M:%SZ}" for name, end in ends if end is not None)))


def _receipt(raw: bytes) -> Receipt:
    import msgspec

    from replica.notary.one_value import check_keys
    from replica.notary.receipts import ReceiptDocument, receipt_from_document
    from replica.notary.untrusted import UNREADABLE

    if len(raw) > RECEIPT_MAX_BYTES:
        raise BadRequest(f"no receipt: more than {RECEIPT_MAX_BYTES:,} bytes")
    check_keys(raw)
    try:
        document = msgspec.json.decode(raw)
        if isinstance(document, dict) and "receipt" in document:
            document = document["receipt"]
        return receipt_from_document(msgspec.convert(document, ReceiptDocument))
    except UNREADABLE as error:
        raise BadRequest(f"no receipt: {error}") from None


def _content(path: Path) -> tuple[bytes, bytes]:
    """Transaction id and content digest of a submission document."""
    import msgspec

    from ledger_api.wire.submissions import SubmissionDocument, submission_from_document
    from replica.notary.canonical import summarise
    from replica.notary.one_value import check_keys
    from replica.notary.untrusted import UNREADABLE, read_bounded

    raw = read_bounded(path)
    check_keys(raw)
    try:
        document = msgspec.json.decode(raw, type=SubmissionDocument)
    except UNREADABLE as error:
        raise BadRequest(f"{path} is no submission: {error}") from None
    tx_id, content_digest, _ = summarise(submission_from_document(document, lambda: "offline").request)
    return tx_id, content_digest


def _unusable(detail: str) -> Exception:
    from replica.notary.errors import ConfigError

    return ConfigError(detail)
