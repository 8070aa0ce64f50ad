package org.replicatednotary.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** A client with several endpoints looks around while it waits, and learns of further ones. */
class LookoutTest {
    private static final RetryPolicy PATIENT =
            RetryPolicy.defaults().withTimeoutS(0.01).withDeadlineS(60).withAttemptMaxS(45);
    private static final Party PARTY = Party.fromSeed("O=Bank A,L=London,C=GB", "4c".repeat(16), "01".repeat(32));
    private static final double USUALLY_MUCH_LESS_S = 15; // a tenth of it, and attemptMaxS is 45

    private static String string(ReplicaDouble... replicas) {
        String hosts = String.join(",", List.of(replicas).stream().map(one -> one.endpoint().substring(7)).toList());
        return "http://" + hosts;
    }

    private static String codeOf(Answer answer) {
        return answer instanceof Answer.Refused refused ? refused.code() : answer.toString();
    }

    private static void eventually(java.util.function.BooleanSupplier condition) throws InterruptedException {
        for (int turn = 0; turn < 400 && !condition.getAsBoolean(); turn++) {
            Thread.sleep(25);
        }
        assertTrue(condition.getAsBoolean());
    }

    @Test
    void aQuietFeedMakesNobodyLookAround() throws Exception {
        try (ReplicaDouble first = new ReplicaDouble(7);
                ReplicaDouble second = new ReplicaDouble(8);
                NotaryClient client = new NotaryClient(string(first, second), PATIENT, Access.open());
                Feed<Completion> feed = client.completions(0, null, List.of())) {
            first.leads = true;
            first.ledgerEnd = 1;
            assertEquals(1, feed.next().offset());
            CompletableFuture<Completion> next = CompletableFuture.supplyAsync(feed::next);
            Thread.sleep(2_600); // a call would have been looked after twice
            assertFalse(next.isDone());
            assertEquals(0, first.count("GET /v1/notary") + second.count("GET /v1/notary"));
        }
    }

    @Test
    void callsStreamsAndFeedsLeaveAFrozenActiveOnceAnotherOneLeads() throws Exception {
        try (ReplicaDouble first = new ReplicaDouble(7);
                ReplicaDouble second = new ReplicaDouble(8);
                NotaryClient client = new NotaryClient(string(first, second), PATIENT, Access.open());
                SubmissionStream stream = client.stream();
                Feed<Completion> feed = client.completions(0, null, List.of())) {
            first.leads = true;
            first.ledgerEnd = 1;
            assertEquals(1, feed.next().offset());
            assertEquals("TX_ID_REUSED", codeOf(stream.submit(PARTY.sign(Transaction.of())).get(10, TimeUnit.SECONDS)));
            first.isFrozen = true;
            second.ledgerEnd = 2;
            CompletableFuture<Answer> streamed = stream.submit(PARTY.sign(Transaction.of()));
            CompletableFuture<Answer> called = CompletableFuture.supplyAsync(() -> client.submit(PARTY.sign(Transaction.of())));
            CompletableFuture<Completion> next = CompletableFuture.supplyAsync(feed::next);
            Thread.sleep(1_600); // the other was asked meanwhile, and was not active
            assertFalse(streamed.isDone() || called.isDone() || next.isDone());
            assertTrue(second.count("GET /v1/notary") > 0);
            double changedAtS = Connection.clockS();
            second.leads = true;
            assertEquals("TX_ID_REUSED", codeOf(streamed.get(40, TimeUnit.SECONDS)));
            assertEquals("TX_ID_REUSED", codeOf(called.get(40, TimeUnit.SECONDS)));
            assertEquals(2, next.get(40, TimeUnit.SECONDS).offset());
            try (NotaryClient late = new NotaryClient(string(first, second), PATIENT, Access.open());
                    SubmissionStream lateStream = late.stream()) { // begins at the frozen one
                assertEquals("TX_ID_REUSED", codeOf(lateStream.submit(PARTY.sign(Transaction.of())).get(40, TimeUnit.SECONDS)));
            }
            assertTrue(Connection.clockS() - changedAtS < USUALLY_MUCH_LESS_S);
        }
    }

    @Test
    void aSlowActiveIsNotLeftNorABalancerBeforeIt() throws IOException {
        try (ReplicaDouble first = new ReplicaDouble(7);
                ReplicaDouble second = new ReplicaDouble(7); // both lead to one replica
                NotaryClient client = new NotaryClient(string(first, second), PATIENT, Access.open())) {
            first.leads = second.leads = true;
            first.answersAfterMs = 2_800;
            assertEquals("TX_ID_REUSED", codeOf(client.submit(PARTY.sign(Transaction.of()))));
            assertTrue(first.count("GET /v1/notary") > 0);
            assertEquals(List.of(1L, 0L), List.of(first.count("POST /v1/submissions"), second.count("POST /v1/submissions")));
        }
    }

    @Test
    void aLearnedEndpointIsUsedOnceThoseThatWereGivenFail() throws Exception {
        try (ReplicaDouble first = new ReplicaDouble(7);
                ReplicaDouble second = new ReplicaDouble(7);
                ReplicaDouble third = new ReplicaDouble(8)) {
            first.leads = true;
            first.listed = third.endpoint();
            try (NotaryClient client = new NotaryClient(List.of(first.endpoint(), second.endpoint()), PATIENT, Access.open())) {
                assertEquals("TX_ID_REUSED", codeOf(client.submit(PARTY.sign(Transaction.of()))));
                eventually(() -> first.count("GET /v1/endpoints") > 0);
                first.leads = false;
                third.leads = true;
                assertEquals("TX_ID_REUSED", codeOf(client.submit(PARTY.sign(Transaction.of()))));
                assertEquals(1, third.count("POST /v1/submissions"));
                assertEquals("TX_ID_REUSED", codeOf(client.submitAll(List.of(PARTY.sign(Transaction.of()))).get(0))); // its stream as well
            }
        }
    }

    @Test
    void aListThatIsNoneChangesNothing() throws Exception {
        try (ReplicaDouble first = new ReplicaDouble(7);
                ReplicaDouble second = new ReplicaDouble(8)) {
            first.leads = true;
            first.listed = "x".repeat(100_000); // more than a list may have
            try (NotaryClient client = new NotaryClient(string(first, second), PATIENT, Access.open())) {
                eventually(() -> first.count("GET /v1/endpoints") > 0);
                assertEquals("TX_ID_REUSED", codeOf(client.submit(PARTY.sign(Transaction.of()))));
            }
        }
    }

    @Test
    void oneEndpointIsUsedAlone() throws IOException {
        try (ReplicaDouble only = new ReplicaDouble(7);
                NotaryClient client = new NotaryClient(only.endpoint(), PATIENT, Access.open())) {
            only.leads = true;
            only.answersAfterMs = 1_500;
            assertEquals("TX_ID_REUSED", codeOf(client.submit(PARTY.sign(Transaction.of()))));
            assertEquals(List.of("POST /v1/submissions"), only.seen); // no list is asked for, and nobody is asked who leads
        }
    }

    @Test
    void aRefusalByTheNextOneSettlesNothing() throws IOException {
        String gone;
        try (ReplicaDouble closed = new ReplicaDouble(7)) {
            gone = closed.endpoint();
        }
        try (ReplicaDouble second = new ReplicaDouble(8)) {
            List<String> given = List.of(gone, second.endpoint());
            try (NotaryClient client = new NotaryClient(given, PATIENT.withDeadlineS(0), Access.open())) {
                assertEquals("OUTCOME_UNKNOWN", ((Answer.NotNow) client.submit(PARTY.sign(Transaction.of()))).code());
            }
        }
    }
}
