package org.replicatednotary.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyPair;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The client against a server that answers as it is told; its receipts are signed for real. */
class ClientTest {
    private static final RetryPolicy QUICK =
            RetryPolicy.defaults().withTimeoutS(0.01).withDeadlineS(5).withAttemptMaxS(2);
    private static final Party PARTY = Party.fromSeed("O=Bank A,L=London,C=GB", "4c".repeat(16), "01".repeat(32));
    private static final KeyPair NOTARY = notary();
    private static final String NOTARY_KEY = Bytes.toHex(Ed25519.publicBytes(NOTARY.getPublic()));
    private static final String TX_ID = "ab".repeat(32);

    /** Status 0 breaks the connection. */
    private record Reply(int status, String body, String type) {}

    private record Seen(String url, String body, String token) {}

    private final List<Seen> seen = new CopyOnWriteArrayList<>();
    private HttpServer server;

    private static KeyPair notary() {
        try {
            return Ed25519.fromSeed(HexFormat.of().parseHex("2a".repeat(32)));
        } catch (java.security.GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The last reply is given again and again. */
    private NotaryClient client(Access access, Reply... replies) throws IOException {
        stop(); // a test may have one after the other
        seen.clear();
        server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/", exchange -> answer(exchange, replies));
        server.start();
        return new NotaryClient("http://127.0.0.1:" + server.getAddress().getPort(), QUICK, access);
    }

    private NotaryClient client(Reply... replies) throws IOException {
        return client(Access.open(), replies);
    }

    private void answer(HttpExchange exchange, Reply... replies) throws IOException {
        String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
        String token = exchange.getRequestHeaders().getFirst("Authorization");
        seen.add(new Seen(exchange.getRequestURI().toString(), body, token));
        Reply reply = replies[Math.min(seen.size(), replies.length) - 1];
        if (reply.status() != 0) {
            byte[] raw = reply.body().getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", reply.type());
            exchange.sendResponseHeaders(reply.status(), raw.length);
            exchange.getResponseBody().write(raw);
        }
        exchange.close();
    }

    @AfterEach
    void stop() {
        if (server != null) {
            server.stop(0);
        }
    }

    private static Reply json(int status, Object body) {
        return new Reply(status, body.toString(), "application/json");
    }

    private static Reply lines(String text) {
        return new Reply(200, text, "application/x-ndjson");
    }

    private static ObjectNode problem(String code, int status, String retry) {
        ObjectNode found = Golden.MAPPER.createObjectNode();
        found.put("type", "urn:notary:problem:" + code).put("title", code).put("status", status).put("detail", "d");
        return found.put("code", code).put("remedy", "r").put("retry", retry);
    }

    private static Reply notActive() {
        return json(503, problem("NOT_ACTIVE", 503, "same").put("retry_after_s", 0.01));
    }

    private static ObjectNode success(Submission submission) {
        return success(submission, null);
    }

    private static ObjectNode success(Submission submission, Receipt.Place place) {
        byte[] digest = Request.contentDigest(submission.canonical());
        byte[] where = place == null ? new byte[0] : place.encoded();
        byte[] root = Receipt.leafHash(HexFormat.of().parseHex(submission.txId()), digest, where);
        ObjectNode found = Golden.MAPPER.createObjectNode();
        found.put("status", 200).put("code", "NOTARISED").put("tx_id", submission.txId());
        found.put("content_digest", Bytes.toHex(digest)).put("log_offset", 41).put("record_offset", 41);
        found.put("duplicate", false).put("ledger_offset", 1);
        ObjectNode receipt = found.putObject("receipt");
        receipt.put("tx_id", submission.txId()).put("content_digest", Bytes.toHex(digest)).put("leaf_index", 0);
        receipt.put("tree_size", 1).put("notary_key", NOTARY_KEY).putArray("path");
        byte[] statement = Receipt.statement(1, root);
        receipt.put("signature", Bytes.toHex(Ed25519.sign(NOTARY.getPrivate(), statement)));
        receipt.put("version", 2);
        if (place != null) {
            receipt.set("place", Golden.MAPPER.valueToTree(place));
        }
        return found;
    }

    @Test
    void aReceiptIsOfTheOffsetThatTheAnswerNames() throws IOException {
        Submission submission = PARTY.sign(Transaction.of(TX_ID + ":1"));
        Receipt.Place there = new Receipt.Place("raft:log", 41, 7, 1_700_000_000_000_000L);
        Receipt.Place elsewhere = new Receipt.Place("raft:log", 42, 7, 1_700_000_000_000_000L);
        try (NotaryClient client = client(json(200, success(submission, there)), json(200, success(submission, elsewhere)))) {
            assertEquals(there, client.notarise(submission, NOTARY_KEY).receipt().place());
            assertThrows(NotaryException.ReceiptInvalid.class, () -> client.notarise(submission, NOTARY_KEY));
        }
    }

    @Test
    void aSubmissionIsSentAgainWithTheSameBytesUntilItsAnswerIsFinal() throws IOException {
        Submission submission = PARTY.sign(Transaction.of(TX_ID + ":1"));
        Reply[] replies = {
            new Reply(0, "", ""), notActive(), new Reply(502, "<html>", "text/html"), json(200, "[1"), json(200, success(submission))
        };
        try (NotaryClient client = client(replies)) {
            assertEquals(41, client.notarise(submission, NOTARY_KEY).logOffset());
        }
        assertTrue(seen.size() >= replies.length);
        assertEquals(1, new HashSet<>(seen.stream().map(Seen::body).toList()).size());
        assertEquals(submission.submissionId(), Documents.parse(seen.get(0).body()).path("submission_id").asText());
    }

    @Test
    void aRefusalIsFinalAndTypedAndNotSentAgain() throws IOException {
        ObjectNode body = problem("STATE_CONFLICT", 409, "no").put("tx_id", TX_ID).put("ledger_offset", 2);
        body.putArray("conflicts").addObject().put("state", TX_ID + ":1").put("consumed_by_hash", TX_ID).put("usage", "input");
        try (NotaryClient client = client(json(409, body))) {
            Answer.Refused refused = assertInstanceOf(Answer.Refused.class, client.submit(PARTY.sign(Transaction.of())));
            assertTrue(refused.isFinal());
            assertEquals(TX_ID + ":1", refused.conflicts().get(0).state());
            assertEquals(1, seen.size());
            assertThrows(NotaryException.NotarisationRefused.class, refused::orThrow);
        }
    }

    @Test
    void aWindowThatOpensLaterIsNoFinalRefusal() throws IOException {
        ObjectNode body = problem("TIME_WINDOW_CLOSED", 422, "no").put("tx_id", TX_ID).put("judged_at", "2029-12-31T23:59:59Z");
        body.putObject("time_window").put("from", "2030-01-01T00:00:00Z").put("until", "2030-01-02T01:00:00.000001+01:00");
        ObjectNode late = body.deepCopy().put("judged_at", "2030-01-02T00:00:00.000001Z");
        try (NotaryClient client = client(json(422, body), json(422, late))) {
            assertFalse(((Answer.Refused) client.submit(PARTY.sign(Transaction.of()))).isFinal());
            assertTrue(((Answer.Refused) client.submit(PARTY.sign(Transaction.of()))).isFinal());
        }
    }

    @Test
    void aReceiptForOtherContentIsNoSuccess() throws IOException {
        Submission one = PARTY.sign(Transaction.of().withTxId(TX_ID));
        Submission other = PARTY.sign(Transaction.of(TX_ID + ":1").withTxId(TX_ID));
        try (NotaryClient client = client(json(200, success(other)))) {
            assertThrows(NotaryException.ReceiptInvalid.class, () -> client.notarise(one, NOTARY_KEY));
            assertThrows(NotaryException.ReceiptInvalid.class, () -> client.notarise(other, "00".repeat(32)));
            client.notarise(other, NOTARY_KEY);
        }
    }

    @Test
    void ofABatchOnlyWhatHasNoFinalAnswerIsSentAgain() throws IOException {
        List<Submission> batch = List.of(PARTY.sign(Transaction.of()), PARTY.sign(Transaction.of()));
        ObjectNode first = Golden.MAPPER.createObjectNode();
        first.putArray("results").add(success(batch.get(0))).add(problem("OVERLOADED", 503, "same").put("retry_after_s", 0.01));
        ObjectNode second = Golden.MAPPER.createObjectNode();
        second.putArray("results").add(success(batch.get(1)));
        try (NotaryClient client = client(json(200, first), json(200, second))) {
            client.submitBatch(batch).forEach(Answer.Result::orThrow);
        }
        assertEquals(List.of(2, 1), seen.stream().map(one -> Documents.parse(one.body()).path("submissions").size()).toList());
    }

    private static ObjectNode acceptance(String code) {
        return Golden.MAPPER.createObjectNode().put("status", 202).put("code", code).put("submission_id", "s").put("estimate_s", 0.25);
    }

    @Test
    void anEarlyAcceptanceNamesThePlaceInTheLogAndIsNoAnswer() throws IOException {
        Submission submission = PARTY.sign(Transaction.of());
        Reply[] replies = {
            notActive(),
            json(202, acceptance("ACCEPTED_EARLY").putNull("log_offset").put("transaction_id", "2.17")),
            json(202, acceptance("ACCEPTED").put("log_offset", 41)),
            json(200, success(submission)),
            json(400, problem("EARLY_NOT_OFFERED", 400, "no"))
        };
        try (NotaryClient client = client(replies)) {
            assertEquals(new Answer.AcceptedEarly("s", 0.25, "2.17"), client.submitEarly(submission, null));
            assertEquals(new Answer.Accepted("s", 0.25, 41L), client.submitEarly(submission, null));
            assertInstanceOf(Answer.Notarised.class, client.submitEarly(submission, null));
            Answer.Problem refused = assertInstanceOf(Answer.Problem.class, client.submitEarly(submission, null));
            assertEquals("EARLY_NOT_OFFERED", refused.code());
        }
        assertTrue(seen.stream().allMatch(one -> one.url().equals("/v1/submissions/async?accept=early")));
    }

    @Test
    void anEarlyAcceptanceWithoutAPlaceLeavesTheOutcomeUnknown() {
        Answer answer = Documents.early(202, acceptance("ACCEPTED_EARLY").toString());
        assertEquals("OUTCOME_UNKNOWN", assertInstanceOf(Answer.NotNow.class, answer).code());
    }

    @Test
    void whatBecameOfAnEntryOfTheLogAndWhatIsCommitted() throws IOException {
        ObjectNode entry = Golden.MAPPER.createObjectNode().put("transaction_id", "2.17").put("status", "Committed");
        entry.put("committed", "3.20").put("log_offset", 41).putNull("ledger_offset");
        ObjectNode commit = Golden.MAPPER.createObjectNode().put("transaction_id", "3.20").put("view_history_since", 1);
        commit.putArray("view_history").add(1).add(1).add(18);
        Reply[] replies = {
            json(503, problem("LOG_NODES_SILENT", 503, "same").put("retry_after_s", 0.01)),
            json(200, entry),
            json(200, entry.deepCopy().put("status", "Newer")),
            json(200, commit),
            json(404, problem("NO_LOG_NODES", 404, "no"))
        };
        try (NotaryClient client = client(replies)) {
            assertEquals(
                    new NotaryClient.LogTransaction("2.17", NotaryClient.LogStatus.COMMITTED, "3.20", 41L, null),
                    client.logTransaction("2.17"));
            assertThrows(NotaryException.AnswerUnreadable.class, () -> client.logTransaction("2.17"));
            assertEquals(new NotaryClient.Commit("3.20", List.of(1L, 1L, 18L), 1), client.commit(1));
            assertThrows(NotaryException.RequestRejected.class, () -> client.commit(1));
        }
        List<String> asked = seen.stream().map(Seen::url).toList();
        assertEquals(List.of("/v1/log/2.17", "/v1/log/2.17", "/v1/log/2.17"), asked.subList(0, 3));
        assertEquals("/v1/commit?view_history_since=1", asked.get(3));
    }

    @Test
    void estimatesMayComeBeforeAnAnswer() throws IOException {
        Submission submission = PARTY.sign(Transaction.of(), Deduplication.within(60));
        List<Double> told = new ArrayList<>();
        try (NotaryClient client = client(lines("{\"kind\":\"wait\",\"estimate_s\":12.5}\n" + success(submission) + "\n"))) {
            client.submit(submission, Deduplication.within(60), told::add).orThrow();
        }
        assertEquals(List.of(12.5), told);
    }

    @Test
    void completionsGoOnBehindTheLastOffset() throws IOException {
        String end = "{\"kind\":\"end\",\"offset\":3,\"problem\":" + problem("NOT_ACTIVE", 503, "same") + "}\n";
        Reply[] replies = {
            lines(line(1) + line(2) + line(3).substring(0, 20)), notActive(), lines(line(3) + end),
            lines("{\"kind\":\"checkpoint\",\"offset\":7}\n"), lines(line(7) + line(8)), lines(line(8)),
            json(410, problem("OFFSET_PRUNED", 410, "no"))
        };
        List<Long> offsets = new ArrayList<>();
        try (NotaryClient client = client(replies);
                Feed<Completion> feed = client.completions(0, "u", List.of("O=A,C=GB"))) {
            NotaryException.StreamEnded ended = assertThrows(
                    NotaryException.StreamEnded.class, () -> feed.forEachRemaining(one -> offsets.add(one.offset())));
            assertEquals("OFFSET_PRUNED", ended.code());
        }
        assertEquals(List.of(1L, 2L, 3L, 8L), offsets);
        assertEquals("/v1/completions?after=0&party=O%3DA%2CC%3DGB&user_id=u&follow=true", seen.get(0).url());
    }

    @Test
    void aBookmarkOfAnotherLedgerIsRefusedAndOneOfThisGoesOn() throws IOException {
        JsonNode vector = Golden.json("vectors/bookmarks.json").get(0);
        ObjectNode entry = vector.get("entry").deepCopy();
        entry.put("kind", "completion").put("user_id", "u").put("command_id", "c").put("submission_id", "s").put("code", "NOTARISED");
        entry.putArray("act_as");
        Bookmark kept = Bookmark.parse(vector.get("bookmark").asText());
        String next = entry.deepCopy().put("offset", kept.offset() + 1) + "\n";
        try (NotaryClient client = client(lines(entry + "\n" + next));
                Feed<Completion> feed = client.completions(kept, null, List.of())) {
            assertEquals(kept.offset() + 1, feed.next().offset());
            assertTrue(seen.get(0).url().startsWith("/v1/completions?after=" + (kept.offset() - 1)));
        }
        String update = entry.deepCopy().put("kind", "update") + "\n" + next.replace("completion", "update");
        try (NotaryClient client = client(lines(update));
                Feed<Update> feed = client.updates(kept, List.of())) {
            assertEquals(kept.offset() + 1, feed.next().offset());
        }
        List<ObjectNode> others = List.of(
                entry.deepCopy().put("recorded_at", "2026-01-02T03:04:05.000007Z"),
                entry.deepCopy().put("tx_id", "00".repeat(32)),
                entry.deepCopy().put("content_digest", "00".repeat(32)),
                entry.deepCopy().put("log_offset", 1),
                entry.deepCopy().put("offset", kept.offset() + 1));
        for (ObjectNode other : others) {
            try (NotaryClient client = client(lines(other + "\n"));
                    Feed<Completion> feed = client.completions(kept, null, List.of())) {
                NotaryException.StreamEnded ended = assertThrows(NotaryException.StreamEnded.class, feed::next);
                assertEquals("LEDGER_CHANGED", ended.code());
                assertEquals(kept.offset(), ended.after());
            }
        }
        ObjectNode pruned = problem("OFFSET_PRUNED", 410, "no").put("pruned_to", kept.offset());
        try (NotaryClient client = client(json(410, pruned), lines(next));
                Feed<Completion> feed = client.completions(kept, null, List.of())) {
            assertEquals(kept.offset() + 1, feed.next().offset());
        }
        try (NotaryClient client = client(json(410, pruned.deepCopy().put("pruned_to", kept.offset() + 1)));
                Feed<Completion> feed = client.completions(kept, null, List.of())) {
            assertEquals("OFFSET_PRUNED", assertThrows(NotaryException.StreamEnded.class, feed::next).code());
        }
    }

    private static String line(int offset) {
        ObjectNode found = Golden.MAPPER.createObjectNode();
        found.put("kind", "completion").put("offset", offset).put("user_id", "u").put("command_id", "c").put("submission_id", "s");
        found.put("tx_id", TX_ID).put("content_digest", TX_ID).put("code", "NOTARISED").put("log_offset", offset);
        found.put("recorded_at", "2026-01-02T03:04:05.000006Z").putArray("act_as").add("O=A");
        return found + "\n";
    }

    @Test
    void aTokenThatIsRefusedIsAskedForAnewOnce() throws IOException {
        AtomicInteger asked = new AtomicInteger();
        Reply end = json(200, "{\"ledger_end\":1,\"pruned_to\":0}");
        Access access = Access.withToken(Access.Token.from(() -> "t" + asked.incrementAndGet()));
        try (NotaryClient client = client(access, json(401, problem("TOKEN_INVALID", 401, "no")), end)) {
            assertEquals(1, client.ledgerEnd().ledgerEnd());
        }
        assertEquals(List.of("Bearer t1", "Bearer t2"), seen.stream().map(Seen::token).toList());
    }

    @Test
    void secretsAreKept() throws IOException {
        assertEquals("PLAINTEXT_EXPOSED", codeOf("http://notary.example:8080", Access.withToken(Access.Token.of("t"))));
        assertEquals("PLAINTEXT_EXPOSED", codeOf("http://127.example.com", Access.withToken(Access.Token.of("t"))));
        assertEquals("CONFIG_INVALID", codeOf("ftp://notary.example", Access.open()));
        assertEquals("CONFIG_INVALID", codeOf("http://127.0.0.1:1", Access.open().withCaFile(Path.of("ca.pem"))));
        NotaryException error = assertThrows(NotaryException.class, () -> Access.Token.of("two words"));
        assertFalse(error.getMessage().contains("two words"));
        Path file = Files.createTempFile("notary", "token");
        Files.setPosixFilePermissions(file, java.nio.file.attribute.PosixFilePermissions.fromString("rw-r--r--"));
        try (NotaryClient client = new NotaryClient("http://127.0.0.1:1", QUICK, Access.withToken(Access.Token.inFile(file)))) {
            assertEquals("KEY_UNSAFE", assertThrows(NotaryException.class, client::ledgerEnd).code());
        }
        Files.delete(file);
    }

    private static String codeOf(String endpoint, Access access) {
        return assertThrows(NotaryException.class, () -> new NotaryClient(endpoint, QUICK, access)).code();
    }

    @Test
    void framesAreReadAndAnswersInThemAreTyped() throws IOException {
        assertThrows(NotaryException.AnswerUnreadable.class, () -> SubmissionStream.frameIn(new byte[] {(byte) 0xc1}));
        assertThrows(NotaryException.AnswerUnreadable.class, () -> SubmissionStream.frameIn(new byte[] {(byte) 0x80}));
        JsonNode refused = Golden.MAPPER.readTree("{\"type\":\"refused\",\"code\":\"STATE_CONFLICT\",\"tx_id\":\"" + TX_ID
                + "\",\"conflicts\":[[\"" + "01".repeat(36) + "\",\"" + TX_ID + "\",\"reference\"]],\"judged_us\":null}");
        Answer.Refused answer = (Answer.Refused) Documents.answerInFrame(refused);
        assertEquals("01".repeat(32) + ":16843009", answer.conflicts().get(0).state());
        JsonNode newer = Golden.MAPPER.readTree("{\"type\":\"not_now\",\"code\":\"NEWER\",\"detail\":\"\",\"retry_after_s\":1}");
        assertEquals("OUTCOME_UNKNOWN", ((Answer.NotNow) Documents.answerInFrame(newer)).code());
    }
}
