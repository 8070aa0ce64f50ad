package org.replicatednotary.examples;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.replicatednotary.client.Access;
import org.replicatednotary.client.Answer;
import org.replicatednotary.client.Completion;
import org.replicatednotary.client.Feed;
import org.replicatednotary.client.NotaryClient;
import org.replicatednotary.client.Party;
import org.replicatednotary.client.RetryPolicy;
import org.replicatednotary.client.Submission;
import org.replicatednotary.client.SubmissionStream;
import org.replicatednotary.client.Transaction;

/**
 * Submits COUNT transactions in every way that the client knows, over some seconds, and reads their completions:
 * {@code Failover ENDPOINT NOTARY_KEY PARTY KEY_FILE COUNT}. One JSON document a line: each success and the way that it was
 * submitted, each completion, and last how many receipts verified. Any answer but a success ends it with an error.
 */
public final class Failover {
    private static final String USER = "failover";
    private static final int PAUSE_MS = 25;
    private static final int GROUP = 4; // of which one is submitted by each way, but for the batch, which has two
    private static final int THREADS = 16;
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String notaryKey;
    private final Party party;
    private final NotaryClient client;
    private final SubmissionStream stream;
    private final Set<String> submitted = ConcurrentHashMap.newKeySet();
    private final AtomicInteger verified = new AtomicInteger();

    private Failover(String notaryKey, Party party, NotaryClient client, SubmissionStream stream) {
        this.notaryKey = notaryKey;
        this.party = party;
        this.client = client;
        this.stream = stream;
    }

    public static void main(String[] words) throws Exception {
        RetryPolicy policy = RetryPolicy.defaults().withDeadlineS(60);
        try (NotaryClient client = new NotaryClient(words[0], policy, Access.open());
                SubmissionStream stream = client.stream()) {
            Party party = Party.fromFile(words[2], client.describe().ledgerId(), Path.of(words[3]));
            new Failover(words[1], party, client, stream).run(Integer.parseInt(words[4]));
        }
    }

    private void run(int count) throws Exception {
        long before = client.ledgerEnd().ledgerEnd();
        ExecutorService threads = Executors.newFixedThreadPool(THREADS + 1);
        List<Future<?>> groups = new ArrayList<>();
        int total = count / GROUP * GROUP + 1;
        Future<?> reading = threads.submit(() -> readCompletions(before, total));
        try {
            for (int turn = 0; turn < count / GROUP; turn++) {
                groups.add(threads.submit(this::group));
                Thread.sleep(PAUSE_MS);
            }
            for (Future<?> one : groups) {
                one.get();
            }
            unattended();
            reading.get();
        } finally {
            threads.shutdownNow();
        }
        tell("kind", "end", "submitted", submitted.size(), "verified", verified.get(), "connections", stream.connectionsCount());
    }

    private Submission fresh() {
        Submission submission = party.sign(Transaction.of(Transaction.of().txId() + ":0").withUserId(USER));
        submitted.add(submission.txId());
        return submission;
    }

    private void group() {
        Submission streamed = fresh();
        var underWay = stream.submit(streamed);
        Submission one = fresh();
        check("call", one, client.submit(one));
        List<Submission> batch = List.of(fresh(), fresh());
        List<Answer.Result> results = client.submitBatch(batch);
        for (int at = 0; at < batch.size(); at++) {
            check("batch", batch.get(at), results.get(at));
        }
        check("stream", streamed, (Answer.Result) underWay.join());
    }

    /** One that does not wait: recorded first, its outcome is a completion. */
    private void unattended() {
        Submission submission = fresh();
        if (client.submitAsync(submission, null) instanceof Answer.Result known) {
            check("call", submission, known);
        }
    }

    private void check(String way, Submission submission, Answer.Result result) {
        Answer.Notarised success = result.orThrow();
        if (!submission.isCertifiedBy(success, notaryKey)) {
            throw new IllegalStateException("the receipt of " + success.txId() + " does not verify");
        }
        verified.incrementAndGet();
        tell("kind", "success", "way", way, "tx_id", success.txId(), "content_digest", success.contentDigest(), "log_offset",
                success.logOffset(), "receipt", success.receipt());
    }

    private void readCompletions(long after, int total) {
        Set<String> seen = new HashSet<>();
        try (Feed<Completion> completions = client.completions(after, USER, List.of())) {
            while (seen.size() < total) {
                Completion found = completions.next();
                if (submitted.contains(found.txId())) {
                    tell("kind", "completion", "offset", found.offset(), "tx_id", found.txId(), "code", found.code(), "log_offset",
                            found.logOffset());
                    seen.add(found.txId());
                }
            }
        }
    }

    private static synchronized void tell(Object... fields) {
        Map<Object, Object> line = new LinkedHashMap<>();
        for (int at = 0; at < fields.length; at += 2) {
            line.put(fields[at], fields[at + 1]);
        }
        try {
            System.out.println(JSON.writeValueAsString(line));
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }
}
