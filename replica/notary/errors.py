"""What is raised on purpose: each exception has an entry of the catalogue (codes.py) and the detail of its case."""

from __future__ import annotations

from ha.invariant import InvariantBroken as InvariantBroken  # noqa: PLC0414  (the same for every room)
from replica.notary.codes import Code


class NotaryError(Exception):
    """Base of all we raise on purpose: a catalogue entry and the detail of this case."""

    default_code = Code.INTERNAL

    def __init__(self, detail: str, code: Code | None = None) -> None:
        self.code = code or self.default_code
        self.detail = detail
        super().__init__(f"{self.code.name}: {detail}")

    @property
    def person(self) -> bool:
        """Whether a process that ends with this error is not restarted, as a person must change something first."""
        return self.code.person


class BadRequest(NotaryError):
    """The sender must change the request; nothing was logged."""

    default_code = Code.MALFORMED_REQUEST


class ConfigError(NotaryError):
    """Do not start; a person must change a setting."""

    default_code = Code.CONFIG_INVALID


class SignerUnavailable(NotaryError):
    """The notary's key cannot be used now, so no receipt can be made, whatever the log has decided."""

    default_code = Code.SIGNER_UNAVAILABLE


class NotActive(NotaryError):
    """Nothing was written; send the request again, to the active replica."""

    default_code = Code.NOT_ACTIVE


class StoreUnavailable(NotaryError):
    """The database's answer is missing, so the outcome is unknown; the session is over."""

    default_code = Code.STORE_UNAVAILABLE


class StoreMismatch(NotaryError):
    """The database is not this notary's, or not of this release: do not serve, a person must look."""

    default_code = Code.STORE_MISMATCH


class ReplicaNameTaken(NotaryError):
    """Another running replica has our name: do not start until it has ended."""

    default_code = Code.REPLICA_NAME_TAKEN


class LedgersShareDatabase(NotaryError):
    """Two ledgers would share one lock: do not start; a person must move one of them."""

    default_code = Code.LEDGERS_SHARE_DATABASE


class DatabaseSuperseded(NotaryError):
    """A later primary of this database exists: do not lead here. Try again, perhaps on the right one."""

    default_code = Code.DATABASE_SUPERSEDED


class LogUnavailable(NotaryError):
    """The request log did not answer; nothing is known of records not read back."""

    default_code = Code.LOG_UNAVAILABLE


class LogLeaderChanged(LogUnavailable):
    """Another server leads the log: find the record that was read last in it before reading on."""


class LogRefused(NotaryError):
    """The request log is unsafe or not the one we know: do not serve, a person must look."""

    default_code = Code.LOG_MISMATCH


class LogGone(LogRefused):
    """There is no request log, however long one looks: do not serve, a person must look."""

    default_code = Code.LOG_MISSING


class LogTruncated(LogRefused):
    """Records are gone from the request log's start or end: do not serve, a person must bring them back."""

    default_code = Code.LOG_TRUNCATED


class SeenFileUnwritable(NotaryError):
    """The marks on the disk stay as they were; answers that rest on them wait."""

    default_code = Code.SEEN_FILE_UNWRITABLE


class IndexUnreadable(NotaryError):
    """The index gave neither "spent" nor "unspent": no verdict, stop."""

    default_code = Code.INDEX_UNREADABLE


class IndexDamaged(IndexUnreadable):
    """The index's files are corrupt or incomplete: only another index, made from the log, can replace it."""


class IndexMismatch(NotaryError):
    """Index and log disagree, and it is not known which is wrong. Do not serve; a person must look."""

    default_code = Code.INDEX_MISMATCH


class IndexDamagedAgain(NotaryError):
    """Indexes on this machine keep getting damaged: do not start, a person must look at the machine."""

    default_code = Code.INDEX_DAMAGED_AGAIN


class FormatUnknown(NotaryError):
    """A newer release wrote this log; a reader that guesses would be wrong."""

    default_code = Code.FORMAT_UNKNOWN


class ArchiveDamaged(NotaryError):
    """The archive is not whole: do not write to it, do not restore from it."""

    default_code = Code.ARCHIVE_DAMAGED


class ArchiveMismatch(NotaryError):
    """The archive is of another log, or archive, than what it is used with."""

    default_code = Code.ARCHIVE_MISMATCH


class RestoreRefused(NotaryError):
    """A restore would be unsafe, or it ended before its end; a person must change something, or resume it."""

    default_code = Code.RESTORE_REFUSED


class LogCopyRefused(NotaryError):
    """A second site's log is no copy of this one: nothing is written to it, a person must look."""

    default_code = Code.LOG_COPY_REFUSED


class SalvageDamaged(NotaryError):
    """A tail salvage is not whole, not signed, or contradicts itself: nothing of it was used."""

    default_code = Code.SALVAGE_DAMAGED


class SalvageMissing(NotaryError):
    """A reader reached a lost record without the salvage that it names: do not serve, a person must supply it."""

    default_code = Code.SALVAGE_MISSING


class PlaceUnavailable(NotaryError):
    """A store of files did not answer, or not now. A write may have been done nevertheless; ask again."""

    default_code = Code.PLACE_UNAVAILABLE


class PlaceAccessDenied(NotaryError):
    """A store of files refused the credentials; nothing was written."""

    default_code = Code.PLACE_ACCESS_DENIED


class ArchiveContended(NotaryError):
    """Another archiver added lines meanwhile; what it wrote stands, and nothing of ours was added."""

    default_code = Code.ARCHIVE_CONTENDED


class CatalogueRefused(NotaryError):
    """A catalogue does not register a table as it is asked to; a person must change something."""

    default_code = Code.CATALOGUE_REFUSED


class CatalogueUnavailable(NotaryError):
    """A catalogue did not answer, or failed. What was asked may be done nevertheless; look, then ask again."""

    default_code = Code.CATALOGUE_UNAVAILABLE


class SparkUnavailable(NotaryError):
    """The Spark cluster does not answer, or gives the job no worker; nothing was done."""

    default_code = Code.SPARK_UNAVAILABLE


class PackagesUnavailable(NotaryError):
    """No repository answered that has the jars of a job on Spark; nothing was done."""

    default_code = Code.PACKAGES_UNAVAILABLE


class PipelineFailed(NotaryError):
    """A job failed on Spark for a reason outside our code: memory, a killed worker, a full disk."""

    default_code = Code.PIPELINE_FAILED
