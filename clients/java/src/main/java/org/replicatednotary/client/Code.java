package org.replicatednotary.client;

import java.util.Optional;

/** Codes of the error catalogue that an application can meet; a test compares them with docs/errors.md. */
public enum Code {
    MALFORMED_JSON(Retry.NO),
    MALFORMED_REQUEST(Retry.NO),
    TOO_MANY_STATES(Retry.NO),
    WRONG_LEDGER(Retry.NO),
    EMPTY_BATCH(Retry.NO),
    BATCH_TOO_LARGE(Retry.NO),
    BODY_TOO_LARGE(Retry.NO),
    BODY_TOO_SLOW(Retry.SAME),
    MEDIA_TYPE_UNSUPPORTED(Retry.NO),
    UPGRADE_REQUIRED(Retry.NO),
    WRONG_HOST(Retry.NO),
    WINDOW_EXCEEDED(Retry.NO),
    HTTP_MALFORMED(Retry.NO),
    SIGNATURE_INVALID(Retry.NO),
    PARTY_UNKNOWN(Retry.NO),
    KEY_NOT_VALID(Retry.NO),
    TOKEN_MISSING(Retry.NO),
    TOKEN_INVALID(Retry.NO),
    PERMISSION_DENIED(Retry.NO),
    RATE_EXCEEDED(Retry.SAME),
    STATE_CONFLICT(Retry.NO),
    TX_ID_REUSED(Retry.NO),
    TIME_WINDOW_CLOSED(Retry.NO),
    COMMAND_ID_REUSED(Retry.NO),
    DEDUPLICATION_PERIOD_TOO_LONG(Retry.NO),
    SUBMISSION_IN_FLIGHT(Retry.SAME),
    TX_NOT_FOUND(Retry.NO),
    QUERY_INVALID(Retry.NO),
    OFFSET_PRUNED(Retry.NO),
    OFFSET_AFTER_END(Retry.SAME),
    READER_TOO_SLOW(Retry.SAME),
    TOO_MANY_STREAMS(Retry.SAME),
    FEED_UNAVAILABLE(Retry.SAME),
    EARLY_NOT_OFFERED(Retry.NO),
    NO_LOG_NODES(Retry.NO),
    LOG_NODES_SILENT(Retry.SAME),
    ROUTE_NOT_FOUND(Retry.NO),
    METHOD_NOT_ALLOWED(Retry.NO),
    NOT_ACTIVE(Retry.SAME),
    SERVICE_PAUSED(Retry.SAME),
    OVERLOADED(Retry.SAME),
    USER_OVERLOADED(Retry.SAME),
    OUTCOME_UNKNOWN(Retry.SAME),
    INTERNAL(Retry.SAME),
    ANSWER_UNREADABLE(Retry.SAME),
    RECEIPT_INVALID(Retry.NO),
    LEDGER_CHANGED(Retry.NO),
    CONFIG_INVALID(Retry.NO),
    KEY_UNSAFE(Retry.NO),
    PLAINTEXT_EXPOSED(Retry.NO);

    /** What a client may do with the very same request. */
    public enum Retry {
        /** The same request is answered the same. */
        NO,
        /** Nothing is decided or known: send the very same request again, with the same ids. */
        SAME
    }

    private final Retry retry;

    Code(Retry retry) {
        this.retry = retry;
    }

    /** Whether to send the same request again. */
    public Retry retry() {
        return retry;
    }

    /** The code of a name; empty for one that only a newer notary knows. */
    public static Optional<Code> of(String name) {
        for (Code code : values()) {
            if (code.name().equals(name)) {
                return Optional.of(code);
            }
        }
        return Optional.empty();
    }
}
