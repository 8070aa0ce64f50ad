package org.replicatednotary.client;

import java.util.List;

/** What the notary answers. Ids and digests are lower-case hexadecimal. */
public sealed interface Answer {
    /** What a call that waits for the outcome may return. */
    sealed interface Result extends Answer permits Notarised, Refused, NotNow, Problem {
        /** The success, or the error that fits. Throws NotarisationRefused, RequestRejected, OutcomeUnknown. */
        default Notarised orThrow() {
            if (this instanceof Notarised success) {
                return success;
            }
            if (this instanceof Refused refused) {
                throw new NotaryException.NotarisationRefused(refused);
            }
            if (this instanceof NotNow notNow) {
                throw new NotaryException.OutcomeUnknown(notNow);
            }
            throw new NotaryException.RequestRejected((Problem) this);
        }
    }

    /**
     * Final: this content is notarised under this id for ever, at {@code logOffset}. {@code recordOffset}: this submission's own
     * record; null for a look-up, or when an earlier answer was given again. {@code ledgerOffset}: its completion; null: not known.
     */
    record Notarised(
            String txId,
            String contentDigest,
            long logOffset,
            Long recordOffset,
            boolean duplicate,
            Receipt receipt,
            Long ledgerOffset)
            implements Result {}

    /**
     * The verdict against this submission. {@code isFinal}: the same content will never be notarised under this id. The last five
     * are null where the verdict has none.
     */
    record Refused(
            String code,
            String detail,
            String txId,
            boolean isFinal,
            Long recordOffset,
            Long ledgerOffset,
            List<Conflict> conflicts,
            Long judgedUs,
            TimeWindow window,
            Long acceptedOffset,
            Bound bound)
            implements Result {}

    /** A state that was consumed before; {@code usage} is how the refused request used it, {@code input} or {@code reference}. */
    record Conflict(String state, String consumedByHash, String usage) {}

    /** How far back deduplication remembers. */
    record Bound(double longestS, long earliestOffset) {}

    /** Not final: nothing is decided, or the outcome is not known. Send the same again after {@code retryAfterS}. */
    record NotNow(String code, String detail, double retryAfterS) implements Result {
        static NotNow unknown(String detail) {
            String shown = detail.length() > 200 ? detail.substring(0, 200) : detail;
            return new NotNow(Code.OUTCOME_UNKNOWN.name(), shown, 0);
        }
    }

    /**
     * The request cannot be taken as it is: change what the detail names. Nothing was logged. {@code prunedTo}: the bound of
     * pruning, where the problem names it; else null.
     */
    record Problem(
            String code,
            int status,
            String title,
            String detail,
            String remedy,
            Code.Retry retry,
            String requestId,
            double retryAfterS,
            Long prunedTo)
            implements Result {
        /** The problem of a code, for what comes without a document. */
        static Problem of(String code, String detail, int status) {
            Code.Retry retry = Code.of(code).map(Code::retry).orElse(Code.Retry.NO);
            return new Problem(code, status, code, detail, "", retry, "", 0, null);
        }

        boolean isOfToken() {
            return code.equals(Code.TOKEN_INVALID.name()) || code.equals(Code.TOKEN_MISSING.name());
        }
    }

    /**
     * An asynchronous submission is recorded, and its record will have one completion. Without one in {@code estimateS}, send it again.
     * Where several replicas logged it at once there is one for each, and at most one of them is NOTARISED.
     * {@code logOffset}: its record in the log, and its completion's; null: not in the log yet.
     */
    record Accepted(String submissionId, double estimateS, Long logOffset) implements Answer {}

    /**
     * The log's leader has the record at {@code transactionId}, {@code view.seqno}; it is not committed, and may still be lost. This
     * is no answer: without a completion in {@code estimateS}, send the same submission again.
     */
    record AcceptedEarly(String submissionId, double estimateS, String transactionId) implements Answer {}
}
