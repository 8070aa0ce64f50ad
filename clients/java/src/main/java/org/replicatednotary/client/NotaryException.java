package org.replicatednotary.client;

/** Base of all that the client throws: a stable code of the catalogue, perhaps a newer notary's, and the detail of this case. */
public class NotaryException extends RuntimeException {
    private static final long serialVersionUID = 1L;
    private final String code;
    private final String detail;

    NotaryException(String code, String detail) {
        super(code + ": " + detail);
        this.code = code;
        this.detail = detail;
    }

    public String code() {
        return code;
    }

    public String detail() {
        return detail;
    }

    /** The caller must change the request; nothing was sent. */
    public static final class BadRequest extends NotaryException {
        private static final long serialVersionUID = 1L;

        BadRequest(String detail) {
            this(detail, Code.MALFORMED_REQUEST);
        }

        BadRequest(String detail, Code code) {
            super(code.name(), detail);
        }
    }

    /** A setting of the client cannot be used; nothing was sent. */
    public static final class ConfigError extends NotaryException {
        private static final long serialVersionUID = 1L;

        ConfigError(String detail) {
            this(detail, Code.CONFIG_INVALID);
        }

        ConfigError(String detail, Code code) {
            super(code.name(), detail);
        }
    }

    /** The application's own source gave no token; nothing was sent. */
    public static final class TokenUnavailable extends NotaryException {
        private static final long serialVersionUID = 1L;

        TokenUnavailable(String detail) {
            super(Code.TOKEN_MISSING.name(), detail);
        }
    }

    /** What came back is no answer of this API. Nothing is known of what was asked. */
    public static final class AnswerUnreadable extends NotaryException {
        private static final long serialVersionUID = 1L;

        AnswerUnreadable(String detail) {
            super(Code.ANSWER_UNREADABLE.name(), detail);
        }
    }

    /** No replica answered a question until the policy's deadline. */
    public static final class NotActive extends NotaryException {
        private static final long serialVersionUID = 1L;

        NotActive(String detail) {
            super(Code.NOT_ACTIVE.name(), detail);
        }
    }

    /** The notary decided against this request; {@link Answer.Refused#isFinal} says whether it may be notarised later. */
    public static final class NotarisationRefused extends NotaryException {
        private static final long serialVersionUID = 1L;
        private final transient Answer.Refused refused;

        NotarisationRefused(Answer.Refused refused) {
            super(refused.code(), refused.detail());
            this.refused = refused;
        }

        public Answer.Refused refused() {
            return refused;
        }
    }

    /** The request cannot be taken as it is; nothing was logged. */
    public static final class RequestRejected extends NotaryException {
        private static final long serialVersionUID = 1L;
        private final transient Answer.Problem problem;

        RequestRejected(Answer.Problem problem) {
            super(problem.code(), problem.detail());
            this.problem = problem;
        }

        public Answer.Problem problem() {
            return problem;
        }
    }

    /** No final answer in the policy's time. Keep the submission, and send it again, unchanged. */
    public static final class OutcomeUnknown extends NotaryException {
        private static final long serialVersionUID = 1L;

        OutcomeUnknown(Answer.NotNow answer) {
            super(answer.code(), answer.detail());
        }
    }

    /** A success that the notary's key does not vouch for: do not act on it, and tell the operator. */
    public static final class ReceiptInvalid extends NotaryException {
        private static final long serialVersionUID = 1L;

        ReceiptInvalid(Answer.Notarised answer) {
            super(Code.RECEIPT_INVALID.name(), "the receipt of " + answer.txId() + " does not verify for what was submitted");
        }
    }

    /** A stream of completions that cannot go on: pruned, not to be seen, or of another ledger. */
    public static final class StreamEnded extends NotaryException {
        private static final long serialVersionUID = 1L;
        private final long after;

        StreamEnded(Answer.Problem problem, long after) {
            super(problem.code(), problem.detail() + " (read up to offset " + after + ")");
            this.after = after;
        }

        /** The last offset that was read. */
        public long after() {
            return after;
        }
    }
}
