"""Judges this machine: configuration, files, data folder, limits, clock. Pure."""

from __future__ import annotations

from datetime import timedelta

from replica.doctor.facts import Facts
from replica.doctor.verdict import Checks, Verdict, ok, problem, unknown, warning

DISK_LEAST_BYTES = 1 << 30
DISK_LEAST_SHARE = 0.1
OPEN_FILES_LEAST = 8_192  # the index's tables may take 6,000 of a core's, clients 4,096 of a front end's
CERTIFICATE_WARNING = timedelta(days=30)
CHECKS = Checks()


# ---- files ----


@CHECKS.check("configuration")
def _configuration(facts: Facts) -> Verdict:
    """Every setting is one, has a value that it may have, and fits the others."""
    return ok("valid")  # the facts were gathered with it; `refused_configuration` handles one that is not usable


_KEY_FIXES = {
    "file": "chmod 600 the file; a new notary makes one: notary keys create",
    "token": "check the token, its labels and its PIN (docs/security.md, On a PKCS#11 token)",
    "service": "check kms.key_id, kms.endpoint, kms.ca_file and the way to the service, and that the key is enabled "
    "(docs/security.md, In a key management service)",
}
_CREDENTIALS_FIX = (
    "renew the credentials in this command's environment, which the replicas need in theirs as well, or give them the "
    "rights kms:GetPublicKey and kms:Sign on the key (docs/security.md, In a key management service)"
)


def _key_fix(facts: Facts) -> str:
    return _CREDENTIALS_FIX if facts.files.notary_key_refused else _KEY_FIXES[facts.files.notary_key_in]


@CHECKS.of_file("notary-key", _key_fix)
def _notary_key(facts: Facts) -> Verdict:
    """The notary's signing key is there, Ed25519 or P-256, signs, nobody else can read it, and receipts may name it."""
    ended = facts.files.notary_key_ended
    if ended is not None:
        fix = "set notary_key_file (pkcs11.key_label, kms.key_id) to the new key, and restart: runbooks/key-rotation.md"
        return problem(f"it signs, although the list of the notary's keys says that it ended at {ended:%Y-%m-%d}", fix)
    return ok("it signs, and nobody else can read it")


@CHECKS.of_file("operator-keys", "correct the file that operators.keys_file names: docs/trail.md")
def _operator_keys(facts: Facts) -> Verdict:
    """The operators' public keys can be read, written by nobody else, and where four eyes are demanded, two people
    have one."""
    return ok("as they must be")


@CHECKS.of_file("database-password", "write the file that [database] names, and chmod 600 it")
def _database_password(facts: Facts) -> Verdict:
    """The database roles' passwords are files that nobody else can read, not a part of the configuration."""
    if facts.files.password_in_conninfo:
        return problem("database.conninfo holds a password", "move it to a file and name that in password_file")
    return ok("none in the configuration")


@CHECKS.of_file("log-secrets", "correct the file that [log] names; secrets have mode 0600")
def _log_secrets(facts: Facts) -> Verdict:
    """The files for the request log can be read, and key and password by nobody else."""
    return ok("as they must be")


@CHECKS.of_file("api-certificates", "correct the file under api.tls; the key has mode 0600: then SIGHUP the replicas")
def _api_certificates(facts: Facts) -> Verdict:
    """Certificate and key of the API belong together, and nobody else can read the key."""
    return ok("as they must be")


@CHECKS.of_file("token-keys", "correct api.tokens; replicas that run keep the keys that they have")
def _token_keys(facts: Facts) -> Verdict:
    """The keys that callers' tokens are checked with can be had: from their file, or from who issues tokens; and so can
    the list of revoked tokens; nobody else can write either file. Callers on other machines need a token."""
    opened = facts.files.open_listeners
    if opened:
        text = f"everybody who reaches the API of {', '.join(opened)} reads the whole ledger: api.tokens is none"
        return warning(text, "if not all of them may, set [api.tokens]: docs/security.md, Tokens")
    return ok("as they must be")


@CHECKS.of_file("tracing", "install the extra `tracing`, correct tracing.ca_file, or take tracing.endpoint away")
def _tracing(facts: Facts) -> Verdict:
    """Where traces are wanted, they can be sent."""
    return ok("as it must be")


@CHECKS.of_file("salvages", "notary index salvage FILE --name R, with the file from beside the archive")
def _salvages(facts: Facts) -> Verdict:
    """Each replica of this machine has, undamaged, the salvages of lost records that the database demands."""
    lacking = {
        name: [digest[:12] for digest in facts.database.salvages if digest not in held]
        for name, held in facts.files.salvages.items()
    }
    texts = [f"{name} lacks {', '.join(digests)}" for name, digests in lacking.items() if digests]
    if texts:
        fix = "notary index salvage, with the file from beside the archive; until then it cannot lead"
        return problem("; ".join(texts), fix)
    return ok(f"{len(facts.database.salvages)} demanded")


@CHECKS.check("certificates")
def _certificates(facts: Facts) -> Verdict:
    """No certificate that the configuration names has expired, or is about to."""
    soonest = min(facts.files.certificates.items(), key=lambda item: item[1], default=None)
    if soonest is None:
        return ok("none configured")
    setting, expires = soonest
    text = f"{setting} expires {expires:%Y-%m-%d}"
    fix = "replace the file; "
    fix += "SIGHUP the replicas" if setting.startswith("api.tls") else "then restart replicas one by one"
    fix += ": runbooks/certificate-rotation.md"
    if expires <= facts.now:
        return problem(f"{setting} expired {expires:%Y-%m-%d}", fix)
    if expires - facts.now < CERTIFICATE_WARNING:
        return warning(text, fix)
    return ok(text)


# ---- this machine ----


@CHECKS.check("data-folder")
def _data_folder(facts: Facts) -> Verdict:
    """The data folder can be written, outlives a boot, and is closed to other users."""
    machine = facts.machine
    if machine.data_dir_problem:
        return problem(machine.data_dir_problem, f"make {machine.data_dir} a folder that the replicas' account owns")
    if machine.memory_backed:
        return warning(f"{machine.data_dir} is in memory", "put data_dir on a disk: else a boot reads the whole log")
    if machine.data_dir_open_to_others:
        return warning(f"{machine.data_dir} is open to other users", f"chmod 700 {machine.data_dir}")
    return ok(machine.data_dir)


@CHECKS.check("disk")
def _disk(facts: Facts) -> Verdict:
    """There is room for the index to grow."""
    machine = facts.machine
    share = machine.free_bytes / machine.size_bytes
    text = f"{machine.free_bytes / (1 << 30):.1f} GiB free, {share:.0%}"
    if machine.free_bytes < DISK_LEAST_BYTES:
        return problem(text, "make room now: a replica that cannot write its index ends; runbooks/disk-full.md")
    if share < DISK_LEAST_SHARE:
        return warning(text, "make room: runbooks/disk-full.md")
    return ok(text)


@CHECKS.check("open-files")
def _open_files(facts: Facts) -> Verdict:
    """A process may open enough files for the index and its clients."""
    limit, wanted = facts.machine.open_files_max, max(OPEN_FILES_LEAST, facts.machine.clients_files)
    if limit < wanted:
        return warning(f"a process may open {limit} files", f"LimitNOFILE={wanted} or more in its unit")
    return ok(f"{limit} for a process")


@CHECKS.check("clock-synchronised")
def _clock_synchronised(facts: Facts) -> Verdict:
    """The kernel says that something keeps its clock right."""
    known = facts.machine.clock_synchronised
    if known is None:
        return unknown("the kernel does not say")
    if not known:
        return warning("nothing synchronises this machine's clock", "run chrony or systemd-timesyncd")
    return ok("the kernel says so")
