package org.replicatednotary.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.BiFunction;
import java.util.function.DoubleConsumer;
import java.util.function.Function;

/**
 * The client of the ledger API. Its calls block, and may be made by many threads at once.
 *
 * <p>Every call keeps on, with the same ids, while the answer is not final or the connection fails, until the policy's deadline:
 * then a NotNow is returned, and the outcome stays unknown until the same submission is sent again. {@code deduplication} says
 * how far back an acceptance of the same command counts; null: the longest that the notary allows. A thread that is interrupted gets
 * OutcomeUnknown.
 */
public final class NotaryClient implements AutoCloseable {
    private static final DoubleConsumer IGNORE = estimateS -> {};
    private final Connection connection;

    /** The newest ledger offset, and the one up to which completions may be gone. */
    public record LedgerEnd(long ledgerEnd, long prunedTo) {}

    /** The submission by which a transaction was notarised first. */
    public record Requester(String userId, String commandId, List<String> actAs, String submissionId) {}

    /** A transaction that was notarised; the last three are null while its completion is not published, or is pruned. */
    public record TransactionStatus(
            String txId, String contentDigest, long logOffset, Long offset, String recordedAt, Requester requestedBy) {}

    /** Whether a state was consumed; the last three are null where it was not, {@code consumedBy} also where it may not be seen. */
    public record StateStatus(String state, boolean consumed, String consumedByHash, String consumedBy, Long logOffset) {}

    /** CCF's names. Committed and Invalid are final. */
    public enum LogStatus {
        UNKNOWN("Unknown"),
        PENDING("Pending"),
        COMMITTED("Committed"),
        INVALID("Invalid");

        private final String text;

        LogStatus(String text) {
            this.text = text;
        }

        static LogStatus of(String text) {
            return Arrays.stream(values())
                    .filter(one -> one.text.equals(text))
                    .findFirst()
                    .orElseThrow(() -> new NotaryException.AnswerUnreadable("a status of the log '" + text + "'"));
        }
    }

    /**
     * What became of an entry of the log, as one of its nodes knows. {@code committed}: the newest that this node knows to be
     * committed. {@code logOffset}: the record's place as all other calls name it; null for the log's own entries, and while the node
     * lacks it. {@code ledgerOffset}: its completion's; null while that is not published, and for ever where the record counts for
     * nothing.
     */
    public record LogTransaction(String transactionId, LogStatus status, String committed, Long logOffset, Long ledgerOffset) {}

    /** The newest committed entry; item i of {@code viewHistory} is the seqno at which view {@code viewHistorySince} + i began. */
    public record Commit(String transactionId, List<Long> viewHistory, long viewHistorySince) {}

    /** What the notary says of itself. Take the key that you trust from the operator, not from here. */
    public record Description(
            String ledgerId, String notaryKey, String version, String replica, boolean active, long epoch, long batchMax) {}

    /** {@code endpoint}: one, or several: {@code https://a:8080,b:8080,c:8080/}. Throws ConfigError when one cannot be used. */
    public NotaryClient(String endpoint) {
        this(endpoint, RetryPolicy.defaults(), Access.open());
    }

    /** Throws ConfigError when the endpoint, or what {@code access} names, cannot be used. */
    public NotaryClient(String endpoint, RetryPolicy policy, Access access) {
        this(List.of(endpoint), policy, access);
    }

    /** {@code endpoints}: one each, of one scheme. Throws ConfigError. */
    public NotaryClient(List<String> endpoints, RetryPolicy policy, Access access) {
        this.connection = new Connection(endpoints, policy, access);
    }

    @Override
    public void close() {
        connection.close();
    }

    // ---- submissions ----

    /** Submit one and wait for its answer. */
    public Answer.Result submit(Submission submission) {
        return submit(submission, null, IGNORE);
    }

    /** As {@link #submit}; {@code onWait} is told each estimate of how many seconds the answer may take. */
    public Answer.Result submit(Submission submission, Deduplication deduplication, DoubleConsumer onWait) {
        String body = Documents.submission(submission, deduplication).toString();
        return Documents.decision(one(() -> {
            Connection.Exchange answer = connection.call("POST", "/v1/submissions", body, onWait);
            return Documents.decision(Documents.answer(answer.status(), answer.body()));
        }));
    }

    /** Submit several in one call; results in order. Only those without a final answer are sent again. */
    public List<Answer.Result> submitBatch(List<Submission> submissions) {
        return submitBatch(submissions, null, IGNORE);
    }

    public List<Answer.Result> submitBatch(List<Submission> submissions, Deduplication deduplication, DoubleConsumer onWait) {
        BiFunction<Integer, String, Answer> read = (status, body) -> Documents.decision(Documents.answer(status, body));
        return batch("/v1/submissions/batch", submissions, deduplication, onWait, read).stream()
                .map(Documents::decision)
                .toList();
    }

    /** Submit one without waiting for its outcome: Accepted, as soon as it is recorded. The outcome is a completion. */
    public Answer submitAsync(Submission submission, Deduplication deduplication) {
        String body = Documents.submission(submission, deduplication).toString();
        return one(() -> {
            Connection.Exchange answer = connection.call("POST", "/v1/submissions/async", body, IGNORE);
            return Documents.answer(answer.status(), answer.body());
        });
    }

    /**
     * Submit one, and get its place in the log as soon as the log's leader has it: AcceptedEarly. That is no answer: the record is not
     * committed, and may still be lost. {@link #logTransaction} shows what became of it. The outcome is a completion; where none comes,
     * send the same submission again. Accepted, where the record was committed first. A Problem with EARLY_NOT_OFFERED, where the log
     * is not on log nodes.
     */
    public Answer submitEarly(Submission submission, Deduplication deduplication) {
        String body = Documents.submission(submission, deduplication).toString();
        return one(() -> {
            Connection.Exchange answer = connection.call("POST", "/v1/submissions/async?accept=early", body, IGNORE);
            return Documents.early(answer.status(), answer.body());
        });
    }

    /** As {@link #submitAsync}, several in one call. */
    public List<Answer> submitBatchAsync(List<Submission> submissions, Deduplication deduplication) {
        return batch("/v1/submissions/batch/async", submissions, deduplication, IGNORE, Documents::answer);
    }

    /**
     * Submit one, and return its success once the notary's signature is verified for exactly what was submitted. Throws
     * NotarisationRefused, RequestRejected, OutcomeUnknown (keep the submission!), ReceiptInvalid.
     */
    public Answer.Notarised notarise(Submission submission, String notaryKey) {
        NotaryKey.fromHex("the notary's key", notaryKey);
        Answer.Notarised answer = submit(submission).orThrow();
        if (!submission.isCertifiedBy(answer, notaryKey)) {
            throw new NotaryException.ReceiptInvalid(answer);
        }
        return answer;
    }

    /** A stream for many submissions at a time. Close it. */
    public SubmissionStream stream() {
        return stream(false, null);
    }

    /** {@code asynchronous}: the answer is Accepted, as soon as a submission is recorded; its outcome is a completion. */
    public SubmissionStream stream(boolean asynchronous, Deduplication deduplication) {
        return new SubmissionStream(connection.endpoints.fromCurrent(), connection.policy, connection.access, asynchronous, deduplication);
    }

    /** Submit any number over one stream; results in order. */
    public List<Answer.Result> submitAll(List<Submission> submissions) {
        try (SubmissionStream stream = stream()) {
            List<CompletableFuture<Answer>> under = submissions.stream().map(stream::submit).toList();
            return under.stream().map(CompletableFuture::join).map(Documents::decision).toList();
        }
    }

    // ---- what is published ----

    /** Completions after a ledger offset, for ever; null and empty: of every user, of any party. Close it. */
    public Feed<Completion> completions(long after, String userId, List<String> parties) {
        return new Feed<>(connection, "/v1/completions", "completion", Completion::of, after, userId, parties);
    }

    /** As {@link #completions(long, String, List)}, after a bookmark: StreamEnded with LEDGER_CHANGED where the ledger is another one. */
    public Feed<Completion> completions(Bookmark after, String userId, List<String> parties) {
        return new Feed<>(connection, "/v1/completions", "completion", Completion::of, after, userId, parties);
    }

    /** Transactions that were notarised after a ledger offset, each once, for ever. Close it. */
    public Feed<Update> updates(long after, List<String> parties) {
        return new Feed<>(connection, "/v1/updates", "update", Update::of, after, null, parties);
    }

    /** As {@link #updates(long, List)}, after a bookmark: StreamEnded with LEDGER_CHANGED where the ledger is another one. */
    public Feed<Update> updates(Bookmark after, List<String> parties) {
        return new Feed<>(connection, "/v1/updates", "update", Update::of, after, null, parties);
    }

    // ---- questions: RequestRejected, NotActive after the deadline, AnswerUnreadable ----

    /** Whether a transaction was notarised: Notarised with a fresh receipt, or Refused with TX_NOT_FOUND. */
    public Answer.Result lookUp(String txId) {
        String path = "/v1/transactions/" + checkedId(txId);
        return Documents.decision(one(() -> {
            Connection.Exchange answer = connection.call("GET", path, null, IGNORE);
            return Documents.decision(Documents.answer(answer.status(), answer.body()));
        }));
    }

    /** Where, when and for whom a transaction was notarised; empty when it was not. */
    public Optional<TransactionStatus> transaction(String txId) {
        try {
            JsonNode found = connection.fetch("/v1/transactions/" + checkedId(txId) + "/status");
            JsonNode by = found.path("requested_by");
            return Optional.of(new TransactionStatus(
                    Documents.text(found, "tx_id"),
                    Documents.text(found, "content_digest"),
                    Documents.integer(found, "log_offset"),
                    Documents.integerOrNull(found, "offset"),
                    Documents.textOrNull(found, "recorded_at"),
                    !by.isObject()
                            ? null
                            : new Requester(
                                    Documents.text(by, "user_id"),
                                    Documents.text(by, "command_id"),
                                    Documents.texts(by, "act_as"),
                                    Documents.text(by, "submission_id"))));
        } catch (NotaryException.RequestRejected error) {
            if (error.code().equals(Code.TX_NOT_FOUND.name())) {
                return Optional.empty();
            }
            throw error;
        }
    }

    /** Whether a state was consumed, and by which transaction. */
    public StateStatus state(String state) {
        JsonNode found = connection.fetch("/v1/states/" + Request.formatState(Request.parseState(state)));
        return new StateStatus(
                Documents.text(found, "state"),
                found.path("consumed").asBoolean(false),
                Documents.textOrNull(found, "consumed_by_hash"),
                Documents.textOrNull(found, "consumed_by"),
                Documents.integerOrNull(found, "log_offset"));
    }

    /** A state's history after a ledger offset, up to now: who consumed it, and who was refused because of it. */
    public List<Completion> attempts(String state, long after) {
        Bytes.checkOffset("after", after);
        String path = "/v1/states/" + Request.formatState(Request.parseState(state)) + "/attempts?after=";
        List<Completion> found = new ArrayList<>();
        for (long behind = after; ; ) {
            JsonNode page = connection.fetch(path + behind);
            page.path("attempts").forEach(one -> found.add(Completion.of(one)));
            long next = Documents.integer(page, "next_after");
            if (next <= behind || next >= Documents.integer(page, "ledger_end")) {
                return found;
            }
            behind = next;
        }
    }

    /** The newest ledger offset. */
    public LedgerEnd ledgerEnd() {
        JsonNode found = connection.fetch("/v1/ledger-end");
        return new LedgerEnd(Documents.integer(found, "ledger_end"), Documents.integer(found, "pruned_to"));
    }

    /** What became of the log's entry {@code view.seqno}. */
    public LogTransaction logTransaction(String transactionId) {
        JsonNode found = connection.fetch("/v1/log/" + URLEncoder.encode(transactionId, StandardCharsets.UTF_8));
        return new LogTransaction(
                Documents.text(found, "transaction_id"),
                LogStatus.of(Documents.text(found, "status")),
                Documents.text(found, "committed"),
                Documents.integerOrNull(found, "log_offset"),
                Documents.integerOrNull(found, "ledger_offset"));
    }

    /** The newest committed entry of the log, and where its views from this one on began; 1: all of them. */
    public Commit commit(long viewHistorySince) {
        JsonNode found = connection.fetch("/v1/commit?view_history_since=" + viewHistorySince);
        return new Commit(
                Documents.text(found, "transaction_id"),
                Documents.integers(found, "view_history"),
                Documents.integer(found, "view_history_since"));
    }

    /** The notary's key and limits, asked once. */
    public Description describe() {
        Connection.Exchange answer = connection.call("GET", "/v1/notary", null, IGNORE);
        if (answer.status() != 200) {
            throw Connection.whyNot(answer.body(), null);
        }
        JsonNode found = Documents.parse(answer.body());
        return new Description(
                found.path("ledger_id").textValue(),
                Documents.text(found, "notary_key"),
                Documents.text(found, "version"),
                Documents.text(found, "replica"),
                found.path("active").asBoolean(false),
                found.path("epoch").asLong(),
                Documents.integer(found, "batch_max"));
    }

    // ---- one attempt of each, again and again ----

    private static String checkedId(String txId) {
        return Bytes.toHex(Bytes.fromHex("a transaction id", txId, 32));
    }

    private Answer one(java.util.function.Supplier<Answer> ask) {
        return untilFinal(List.of(0), asked -> List.of(ask.get())).get(0);
    }

    private List<Answer> batch(
            String path,
            List<Submission> submissions,
            Deduplication deduplication,
            DoubleConsumer onWait,
            BiFunction<Integer, String, Answer> read) {
        List<ObjectNode> documents =
                submissions.stream().map(one -> Documents.submission(one, deduplication)).toList();
        if (documents.isEmpty()) {
            return List.of();
        }
        return untilFinal(documents, asked -> {
            Connection.Exchange answer = connection.call("POST", path, Documents.batch(asked), onWait);
            if (answer.status() != 200 && answer.status() != 202) {
                return Collections.nCopies(asked.size(), read.apply(answer.status(), answer.body()));
            }
            try {
                JsonNode results = Documents.parse(answer.body()).path("results");
                if (results.size() != asked.size()) {
                    throw new NotaryException.AnswerUnreadable("the results do not fit");
                }
                List<Answer> found = new ArrayList<>();
                results.forEach(one -> found.add(read.apply((int) Documents.integer(one, "status"), one.toString())));
                return found;
            } catch (NotaryException.AnswerUnreadable error) {
                return Collections.nCopies(asked.size(), (Answer) Answer.NotNow.unknown(error.detail()));
            }
        });
    }

    /** Ask again for what has no final answer yet, until the deadline. */
    private <A> List<Answer> untilFinal(List<A> asked, Function<List<A>, List<Answer>> ask) {
        RetryPolicy policy = connection.policy;
        double deadlineS = Connection.clockS() + policy.deadlineS();
        Answer[] results = new Answer[asked.size()];
        List<Integer> missing = new ArrayList<>();
        for (int place = 0; place < results.length; place++) {
            missing.add(place);
        }
        for (int attempt = 0; ; attempt++) {
            List<Answer> answers = ask.apply(missing.stream().map(asked::get).toList());
            double toldS = 0;
            List<Integer> still = new ArrayList<>();
            for (int at = 0; at < answers.size(); at++) {
                int place = missing.get(at);
                // a token that is refused now says nothing of an attempt before, whose outcome is not known
                boolean isOfToken = answers.get(at) instanceof Answer.Problem problem && problem.isOfToken();
                if (attempt == 0 || !isOfToken) {
                    results[place] = answers.get(at);
                }
                if (results[place] instanceof Answer.NotNow notNow) {
                    toldS = Math.max(toldS, notNow.retryAfterS());
                    still.add(place);
                }
            }
            missing = still;
            double delayS = policy.delayS(attempt, toldS, Connection.random());
            if (missing.isEmpty() || Connection.clockS() + delayS > deadlineS) {
                return Arrays.asList(results);
            }
            Connection.sleepS(delayS);
        }
    }
}
