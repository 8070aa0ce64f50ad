package org.replicatednotary.client;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A notarisation request and its canonical bytes: what a party signs, and what the content digest covers. docs/formats.md has
 * the layout. States are {@code <64 hexadecimal digits>:<index>}, in any order; {@code window} may be null.
 */
public record Request(String ledgerId, String txId, List<String> inputs, List<String> references, TimeWindow window, String party) {
    static final int STATES_LIMIT = 10_000; // inputs and references together stay below it
    static final int PARTY_MAX_BYTES = 512;
    private static final int ID_MAX_BYTES = 255;
    private static final int ACT_AS_MAX = 16;
    private static final int CONTENT_AT = 64;
    private static final int STATE_REF_BYTES = 36;
    private static final long INDEX_MAX = 0xffff_ffffL;
    private static final Pattern STATE = Pattern.compile("([0-9a-fA-F]{64}):([0-9]{1,10})");
    private static final Pattern UNPRINTABLE =
            Pattern.compile("[\\u0000-\\u001f\\u007f-\\u009f\\u2028-\\u202e\\u2066-\\u2069]");

    public Request {
        inputs = List.copyOf(inputs);
        references = List.copyOf(references);
    }

    /** What canonical bytes begin with: the request. Throws BadRequest naming the rule that is broken. */
    public byte[] encode() {
        byte[] ledger = Bytes.fromHex("a ledger id", ledgerId, 16);
        byte[] id = Bytes.fromHex("a transaction id", txId, 32);
        if (Arrays.equals(tag("/derived"), Arrays.copyOfRange(id, 24, 32))) {
            throw new NotaryException.BadRequest(
                    "a transaction id that ends in '/derived' is kept for ids that are derived from their content");
        }
        int found = inputs.size() + references.size();
        if (found >= STATES_LIMIT) {
            throw new NotaryException.BadRequest(found + " states, the limit is " + (STATES_LIMIT - 1), Code.TOO_MANY_STATES);
        }
        TreeSet<byte[]> consumed = sorted("inputs", inputs);
        TreeSet<byte[]> referred = sorted("references", references);
        if (referred.stream().anyMatch(consumed::contains)) {
            throw new NotaryException.BadRequest("a state is both an input and a reference");
        }
        if (window != null) {
            window.check();
        }
        byte[] name = checkText("party", party, PARTY_MAX_BYTES);
        ByteBuffer raw = ByteBuffer.allocate(CONTENT_AT + 6 + STATE_REF_BYTES * found + 17 + 2 + name.length);
        raw.put(tag("notary/request/3")).put(ledger).put(id);
        raw.putShort((short) consumed.size()).putShort((short) referred.size()).putShort((short) 0); // nobody owns a state yet
        consumed.forEach(raw::put);
        referred.forEach(raw::put);
        putWindow(raw);
        return raw.putShort((short) name.length).put(name).array();
    }

    /** The canonical bytes: the request, the command and its deduplication period; {@code period} may be null. */
    byte[] encodeWithCommand(String userId, String commandId, List<String> actAs, Deduplication period) {
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        found.writeBytes(encode());
        List.of(userId, commandId).forEach(text -> found.writeBytes(withLength(text)));
        found.write(actAs.size());
        sortedTexts(actAs).forEach(text -> found.writeBytes(withLength(text)));
        found.writeBytes(Deduplication.encode(period));
        found.write(0); // the request is not shown in parts
        return found.toByteArray();
    }

    private static byte[] withLength(String text) {
        byte[] raw = text.getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(2 + raw.length).putShort((short) raw.length).put(raw).array();
    }

    private void putWindow(ByteBuffer raw) {
        Long from = window == null ? null : window.fromUs();
        Long until = window == null ? null : window.untilUs();
        raw.put((byte) ((from == null ? 0 : 1) | (until == null ? 0 : 2)));
        raw.putLong(from == null ? 0 : from).putLong(until == null ? 0 : until);
    }

    /** SHA-256 over the canonical inputs, references and window, of canonical bytes. */
    public static byte[] contentDigest(byte[] canonical) {
        ByteBuffer raw = ByteBuffer.wrap(canonical);
        int states = Short.toUnsignedInt(raw.getShort(CONTENT_AT)) + Short.toUnsignedInt(raw.getShort(CONTENT_AT + 2));
        int end = CONTENT_AT + 6 + STATE_REF_BYTES * states + 17;
        return Bytes.sha256(tag("notary/content/2"), Arrays.copyOfRange(canonical, CONTENT_AT, end));
    }

    /** SHA-256 that identifies a command. The submission id is no part of it. */
    public static byte[] changeId(String userId, String commandId, List<String> actAs) {
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        found.writeBytes(tag("notary/command/1"));
        for (String text : concat(userId, commandId, sortedTexts(actAs))) {
            found.writeBytes(withLength(text));
        }
        return Bytes.sha256(found.toByteArray());
    }

    /** The 36 bytes of a state's text. Throws BadRequest. */
    static byte[] parseState(String text) {
        Matcher match = STATE.matcher(String.valueOf(text));
        if (!match.matches() || Long.parseLong(match.group(2)) > INDEX_MAX) {
            String shown = String.valueOf(text);
            throw new NotaryException.BadRequest("a state is '<64 hexadecimal digits>:<index 0.." + INDEX_MAX + ">', not '"
                    + shown.substring(0, Math.min(90, shown.length())) + "'");
        }
        int index = (int) Long.parseLong(match.group(2));
        return ByteBuffer.allocate(STATE_REF_BYTES).put(Bytes.fromHex("a state", match.group(1), 32)).putInt(index).array();
    }

    /** The text of a state's 36 bytes. */
    static String formatState(byte[] ref) {
        return Bytes.toHex(Arrays.copyOf(ref, 32)) + ":" + Integer.toUnsignedString(ByteBuffer.wrap(ref).getInt(32));
    }

    /** Bound the texts of a command. Throws BadRequest. */
    static void checkCommand(String userId, String commandId, List<String> actAs, String submissionId) {
        checkText("user_id", userId, ID_MAX_BYTES);
        checkText("command_id", commandId, ID_MAX_BYTES);
        checkText("submission_id", submissionId, ID_MAX_BYTES);
        if (actAs.isEmpty() || actAs.size() > ACT_AS_MAX) {
            throw new NotaryException.BadRequest("act_as names 1 to " + ACT_AS_MAX + " parties, not " + actAs.size());
        }
        actAs.forEach(party -> checkText("act_as", party, PARTY_MAX_BYTES));
        if (actAs.stream().distinct().count() != actAs.size()) {
            throw new NotaryException.BadRequest("act_as names a party twice");
        }
    }

    /** Texts in ascending order of their UTF-8. Java's own order is of UTF-16. */
    static List<String> sortedTexts(List<String> texts) {
        return texts.stream()
                .sorted((one, other) -> Arrays.compareUnsigned(
                        one.getBytes(StandardCharsets.UTF_8), other.getBytes(StandardCharsets.UTF_8)))
                .toList();
    }

    private static TreeSet<byte[]> sorted(String name, List<String> texts) {
        TreeSet<byte[]> refs = new TreeSet<>(Arrays::compareUnsigned);
        for (String text : texts) {
            if (!refs.add(parseState(text))) {
                throw new NotaryException.BadRequest(name + ": " + text + " is named twice");
            }
        }
        return refs;
    }

    private static byte[] checkText(String name, String text, int maxBytes) {
        byte[] raw = Bytes.utf8(name, text);
        if (raw.length < 1 || raw.length > maxBytes) {
            throw new NotaryException.BadRequest(name + " has 1 to " + maxBytes + " bytes, not " + raw.length);
        }
        if (UNPRINTABLE.matcher(text).find()) {
            throw new NotaryException.BadRequest(name + " has a character that cannot be printed");
        }
        return raw;
    }

    private static List<String> concat(String first, String second, List<String> others) {
        return java.util.stream.Stream.concat(java.util.stream.Stream.of(first, second), others.stream()).toList();
    }

    private static byte[] tag(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }
}
