package org.replicatednotary.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** The very golden files that the notary's own tests read. */
class VectorsTest {
    private static final String ID = "cd".repeat(32);
    private static final String STATE = "ab".repeat(32) + ":1";

    @Test
    void canonicalBytesAndDigestOfARequest() {
        JsonNode vectors = Golden.json("vectors/canonical.json");
        assertTrue(vectors.size() > 5);
        for (JsonNode vector : vectors) {
            List<String> inputs = new ArrayList<>(Golden.texts(vector.get("inputs")));
            Collections.reverse(inputs); // in any order
            Long from = vector.get("from_us").isNull() ? null : vector.get("from_us").asLong();
            Long until = vector.get("until_us").isNull() ? null : vector.get("until_us").asLong();
            TimeWindow window = from == null && until == null ? null : new TimeWindow(from, until);
            List<String> references = Golden.texts(vector.get("references"));
            byte[] raw = new Request(vector.get("ledger_id").asText(), vector.get("tx_id").asText(), inputs, references, window, vector.get("party").asText()).encode();
            String name = vector.get("name").asText();
            assertEquals(vector.get("request").asText(), Bytes.toHex(raw), name);
            assertEquals(vector.get("content_digest").asText(), Bytes.toHex(Request.contentDigest(raw)), name);
        }
    }

    @Test
    void canonicalBytesDigestAndSignature() {
        JsonNode vectors = Golden.json("vectors/canonical_signed.json");
        assertTrue(vectors.size() > 10);
        for (JsonNode vector : vectors) {
            Long from = vector.get("from_us").isNull() ? null : vector.get("from_us").asLong();
            Long until = vector.get("until_us").isNull() ? null : vector.get("until_us").asLong();
            Deduplication period = periodOf(vector);
            Transaction transaction = Transaction.of()
                    .withTxId(vector.get("tx_id").asText())
                    .withInputs(Golden.texts(vector.get("inputs")))
                    .withReferences(Golden.texts(vector.get("references")))
                    .withWindow(from == null && until == null ? null : new TimeWindow(from, until))
                    .withUserId(vector.get("user_id").asText())
                    .withCommandId(vector.get("command_id").asText())
                    .withActAs(Golden.texts(vector.get("act_as")));
            Party party = Party.fromSeed(vector.get("party").asText(), vector.get("ledger_id").asText(), vector.get("party_seed").asText());
            Submission signed = party.sign(transaction, period);
            String name = vector.get("name").asText();
            assertEquals(vector.get("canonical").asText(), Bytes.toHex(signed.canonical()), name);
            assertEquals(
                    vector.get("content_digest").asText(), Bytes.toHex(Request.contentDigest(signed.canonical())), name);
            assertEquals(vector.get("party_public_key").asText(), Bytes.toHex(signed.publicKey()), name);
            assertEquals(vector.get("signature").asText(), Bytes.toHex(signed.signature()), name);
            JsonNode document = Documents.submission(signed, null);
            assertEquals(period != null, document.has("deduplication"), name);
        }
    }

    @Test
    void anotherPeriodThanTheSignedOneIsNotSent() {
        Submission signed = Party.generate("O=A", "4c".repeat(16)).sign(Transaction.of(STATE), Deduplication.within(60));
        assertEquals("MALFORMED_REQUEST", codeOf(() -> Documents.submission(signed, Deduplication.within(61))));
        assertTrue(Documents.submission(signed, Deduplication.within(60)).has("deduplication"));
    }

    private static Deduplication periodOf(JsonNode vector) {
        if (!vector.get("duration_s").isNull()) {
            return Deduplication.within(vector.get("duration_s").asDouble());
        }
        return vector.get("after_offset").isNull() ? null : Deduplication.after(vector.get("after_offset").asLong());
    }

    @Test
    void changeIds() {
        for (JsonNode vector : Golden.json("vectors/change_id.json")) {
            byte[] found = Request.changeId(
                    vector.get("user_id").asText(), vector.get("command_id").asText(), Golden.texts(vector.get("act_as")));
            assertEquals(vector.get("change_id").asText(), Bytes.toHex(found));
        }
    }

    @Test
    void merkleRootsForEveryLeafOfEverySize() {
        JsonNode vectors = Golden.json("vectors/merkle.json");
        List<byte[]> leaves =
                Golden.texts(vectors.get("leaves")).stream().map(HexFormat.of()::parseHex).toList();
        vectors.get("root_of_the_first").properties().forEach(entry -> {
            List<byte[]> level = leaves.subList(0, Integer.parseInt(entry.getKey()));
            for (int at = 0; at < level.size(); at++) {
                byte[] root = Receipt.rootFromPath(level.get(at), at, level.size(), pathOf(level, at));
                assertEquals(entry.getValue().asText(), Bytes.toHex(root));
            }
        });
    }

    private static List<byte[]> pathOf(List<byte[]> level, int at) {
        List<byte[]> path = new ArrayList<>();
        if (level.size() == 1) {
            return path;
        }
        List<byte[]> parents = new ArrayList<>();
        for (int left = 0; left < level.size(); left += 2) {
            boolean isLast = left + 1 == level.size();
            parents.add(isLast ? level.get(left) : Receipt.rootFromPath(level.get(left), 0, 2, List.of(level.get(left + 1))));
        }
        if ((at ^ 1) < level.size()) {
            path.add(level.get(at ^ 1));
        }
        path.addAll(pathOf(parents, at >> 1));
        return path;
    }

    @Test
    void receiptsOfAKeyOfP256Verify() throws Exception {
        JsonNode vectors = Golden.json("vectors/receipts_p256.json");
        String key = vectors.get("notary_public_key").asText();
        String other = Golden.json("vectors/receipts.json").get("notary_public_key").asText();
        assertEquals(4, vectors.get("receipts").size());
        for (JsonNode document : vectors.get("receipts")) {
            Receipt good = Golden.MAPPER.treeToValue(document, Receipt.class);
            assertTrue(good.verifies(key));
            assertFalse(good.verifies(other));
            for (String name : List.of("tx_id", "content_digest", "signature")) {
                String text = document.get(name).asText();
                for (String bad : List.of((text.startsWith("0") ? "1" : "0") + text.substring(1), text.substring(2))) {
                    assertFalse(changed(document, name, bad).verifies(key), name);
                }
            }
            assertFalse(changed(document, "signature", "00".repeat(64)).verifies(key));
            String noPoint = key.substring(0, 128) + (key.endsWith("00") ? "01" : "00");
            assertFalse(changed(document, "notary_key", noPoint).verifies(noPoint));
        }
    }

    @Test
    void receiptsVerifyAndNothingThatWasChangedDoes() throws Exception {
        JsonNode vectors = Golden.json("vectors/receipts.json");
        String key = vectors.get("notary_public_key").asText();
        List<JsonNode> all = new ArrayList<>();
        vectors.get("receipts").forEach(all::add);
        all.add(Golden.json("receipts/version-2/of-one.json"));
        all.add(Golden.json("receipts/version-2/of-five.json"));
        for (JsonNode document : all) {
            Receipt good = Golden.MAPPER.treeToValue(document, Receipt.class);
            assertTrue(good.verifies(key));
            assertFalse(good.verifies("00".repeat(32)));
            assertFalse(good.verifies("ab"));
            for (String name : List.of("tx_id", "content_digest", "notary_key", "signature")) {
                String text = document.get(name).asText();
                for (String bad : List.of((text.startsWith("0") ? "1" : "0") + text.substring(1), text.substring(2))) {
                    assertFalse(changed(document, name, bad).verifies(key), name);
                }
            }
            assertFalse(changed(document, "tree_size", good.treeSize() + 8).verifies(key));
            assertFalse(changed(document, "tree_size", good.treeSize() + (1L << 32)).verifies(key));
            assertFalse(changed(document, "leaf_index", -1).verifies(key));
            List<String> longer = new ArrayList<>(good.path());
            longer.add("00".repeat(32));
            assertFalse(changed(document, "path", longer).verifies(key));
        }
    }

    @Test
    void aReceiptsPlaceAndVersionVerifyAndNothingThatWasChangedDoes() throws Exception {
        JsonNode vectors = Golden.json("vectors/receipts.json");
        String key = vectors.get("notary_public_key").asText();
        List<JsonNode> placed = new ArrayList<>();
        List<JsonNode> bare = new ArrayList<>();
        vectors.get("receipts").forEach(one -> (one.has("place") ? placed : bare).add(one));
        assertEquals(List.of(3, 1), List.of(placed.size(), bare.size()));
        for (JsonNode document : placed) {
            Receipt good = Golden.MAPPER.treeToValue(document, Receipt.class);
            assertTrue(good.verifies(key));
            assertEquals(document.toString(), Golden.MAPPER.writeValueAsString(good));
            Receipt.Place place = good.place();
            List<Receipt.Place> others = List.of(
                    new Receipt.Place(place.logId() + "x", place.logOffset(), place.epoch(), place.judgedUs()),
                    new Receipt.Place("", place.logOffset(), place.epoch(), place.judgedUs()),
                    new Receipt.Place("\u00e9", place.logOffset(), place.epoch(), place.judgedUs()),
                    new Receipt.Place(place.logId(), place.logOffset() + 1, place.epoch(), place.judgedUs()),
                    new Receipt.Place(place.logId(), -1, place.epoch(), place.judgedUs()),
                    new Receipt.Place(place.logId(), 1L << 53, place.epoch(), place.judgedUs()),
                    new Receipt.Place(place.logId(), place.logOffset(), place.epoch() + 1, place.judgedUs()),
                    new Receipt.Place(place.logId(), place.logOffset(), place.epoch(), place.judgedUs() + 1));
            for (Receipt.Place other : others) {
                assertFalse(changed(document, "place", other).verifies(key), other.toString());
            }
            assertFalse(changed(document, "place", null).verifies(key));
            assertFalse(changed(document, "version", 0).verifies(key));
            assertFalse(changed(document, "version", 1).verifies(key));
            assertFalse(changed(document, "version", 3).verifies(key));
            assertFalse(changed(document, "tx_id", "ab".repeat(32)).verifies(key));
        }
        assertFalse(changed(bare.get(0), "place", placed.get(0).get("place")).verifies(key));
    }

    private static Receipt changed(JsonNode document, String name, Object value) throws Exception {
        JsonNode found = document.deepCopy();
        ((com.fasterxml.jackson.databind.node.ObjectNode) found).set(name, Golden.MAPPER.valueToTree(value));
        return Golden.MAPPER.treeToValue(found, Receipt.class);
    }

    @Test
    void aStatesTextIsReadExactly() {
        assertEquals("ab".repeat(32) + "ffffffff", Bytes.toHex(Request.parseState("ab".repeat(32) + ":4294967295")));
        assertEquals("ab".repeat(32) + ":4294967295", Request.formatState(Request.parseState("AB".repeat(32) + ":4294967295")));
        String id = "ab".repeat(32);
        for (String bad : List.of(id, id + ":", id + ":4294967296", id + ":-1", id + ": 1", id + ":\u0663", id + ":1\n")) {
            assertThrows(NotaryException.BadRequest.class, () -> Request.parseState(bad), bad);
        }
    }

    @Test
    void whatTheNotaryWouldRefuseIsRefusedBeforeItIsSigned() {
        Party party = Party.generate("O=Bank A,L=London,C=GB", "4c".repeat(16));
        Transaction one = Transaction.of(STATE);
        List<Transaction> bad = List.of(
                one.withTxId("cd"),
                one.withInputs(List.of(STATE, STATE.toUpperCase(Locale.ROOT))),
                one.withReferences(List.of(STATE)),
                one.withWindow(new TimeWindow(null, null)),
                one.withWindow(new TimeWindow(2L, 2L)),
                one.withWindow(new TimeWindow(null, -1L)),
                one.withCommandId(""),
                one.withUserId("x".repeat(256)),
                one.withCommandId("line\u2028end"),
                one.withSubmissionId("half \ud800 pair"),
                one.withActAs(List.of()),
                one.withActAs(List.of("O=A", "O=A")),
                one.withActAs(IntStream.range(0, 17).mapToObj(at -> "O=" + at).toList()));
        for (Transaction transaction : bad) {
            assertEquals("MALFORMED_REQUEST", codeOf(() -> party.sign(transaction)), transaction.toString());
        }
        List<String> many = IntStream.range(0, 10_000).mapToObj(at -> ID + ":" + at).toList();
        assertEquals("TOO_MANY_STATES", codeOf(() -> party.sign(Transaction.of().withInputs(many))));
        assertEquals("MALFORMED_REQUEST", codeOf(() -> Party.generate("", "4c".repeat(16)).sign(one)));
        assertEquals("MALFORMED_REQUEST", codeOf(() -> Party.generate("é".repeat(257), "4c".repeat(16)).sign(one)));
        assertEquals("MALFORMED_REQUEST", codeOf(() -> Deduplication.within(-1)));
        assertEquals("MALFORMED_REQUEST", codeOf(() -> Deduplication.within(Double.NaN)));
        assertEquals("MALFORMED_REQUEST", codeOf(() -> Deduplication.after(-1)));
    }

    @Test
    void thePartiesOfACommandAreSortedByTheirUtf8() {
        List<String> given = List.of("O=\ud83d\ude00", "O=\uff5e", "O=A");
        assertEquals(List.of("O=A", "O=\uff5e", "O=\ud83d\ude00"), Party.generate("O=A", "4c".repeat(16)).sign(Transaction.of().withActAs(given)).actAs());
    }

    @Test
    void aBookmarkIsTheSameTextInEveryLanguageAndATextThatIsNoneIsRefused() {
        for (JsonNode vector : Golden.json("vectors/bookmarks.json")) {
            ObjectNode entry = vector.get("entry").deepCopy();
            entry.putArray("act_as");
            assertEquals(vector.get("bookmark").asText(), Bookmark.of(Update.of(entry)).toString());
        }
        for (String text : List.of("", "7", "0-" + "0".repeat(32), "7-" + "g".repeat(32), Long.MAX_VALUE + "0-" + "0".repeat(32))) {
            assertThrows(NotaryException.BadRequest.class, () -> Bookmark.parse(text));
        }
    }

    @Test
    void aKeyIsReadFromPem() {
        String pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n";
        byte[] expected = Party.fromSeed("O=A", "4c".repeat(16), Golden.json("vectors/canonical_signed.json").get(0).get("party_seed").asText()).publicKey();
        assertArrayEquals(expected, Party.fromPem("O=A", "4c".repeat(16), pem).publicKey());
        assertEquals("CONFIG_INVALID", codeOf(() -> Party.fromPem("O=A", "4c".repeat(16), "secret")));
    }

    @Test
    void codesAndTheirRetryAreThoseOfTheCatalogue() {
        Matcher row = Pattern.compile("(?m)^- `([A-Z_]+)` \\((?:(\\d{3})|\\d)?(?:, )?(no|same)?\\)").matcher(Golden.text("docs/errors.md"));
        Map<String, String> catalogue = new HashMap<>();
        while (row.find()) {
            catalogue.put(row.group(1), row.group(3) == null ? "no" : row.group(3));
            assertTrue(row.group(2) == null || Code.of(row.group(1)).isPresent(), row.group(1));
        }
        for (Code code : Code.values()) {
            assertEquals(catalogue.get(code.name()), code.retry().name().toLowerCase(Locale.ROOT), code.name());
        }
    }

    @Test
    void theReadmesExampleIsTheOneThatIsRun() {
        String shown = Golden.text("clients/java/README.md").split("<!-- example -->\n```java\n")[1].split("```")[0];
        assertEquals(Golden.text("clients/java/src/main/java/org/replicatednotary/examples/Notarise.java"), shown);
    }

    private static String codeOf(Executable work) {
        return assertThrows(NotaryException.class, work).code();
    }
}
