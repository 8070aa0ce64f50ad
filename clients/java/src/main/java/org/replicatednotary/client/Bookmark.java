package org.replicatednotary.client;

import java.nio.charset.StandardCharsets;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Where a reader of completions or updates stopped: an offset with a digest of what is published there. It is enough to go on
 * after it, in the same ledger only.
 *
 * <p>What is published at an offset never changes, whatever database or topic it is restored to. So a ledger that has something
 * else at the offset is another one. {@link #toString} makes a text to keep, {@link #parse} reads it.
 */
public record Bookmark(long offset, String digest) {
    private static final Pattern DIGEST = Pattern.compile("[0-9a-f]{32}");
    private static final Pattern FORM = Pattern.compile("([0-9]{1,18})-(" + DIGEST + ")");

    /** Throws BadRequest. */
    public Bookmark {
        if (offset < 1 || !DIGEST.matcher(digest).matches()) {
            throw noBookmark(offset + "-" + digest);
        }
    }

    /** The bookmark at an entry that was processed. */
    public static Bookmark of(Published entry) {
        // only what the log decided: which parties are shown depends on the reader's rights
        String parts = String.join(
                "\n",
                Long.toString(entry.offset()),
                entry.txId(),
                entry.contentDigest(),
                Long.toString(entry.logOffset()),
                entry.recordedAt());
        return new Bookmark(
                entry.offset(), Bytes.toHex(Bytes.sha256(parts.getBytes(StandardCharsets.UTF_8))).substring(0, 32));
    }

    /** Throws BadRequest. */
    public static Bookmark parse(String text) {
        Matcher found = FORM.matcher(text);
        if (!found.matches()) {
            throw noBookmark(text);
        }
        return new Bookmark(Long.parseLong(found.group(1)), found.group(2));
    }

    private static NotaryException.BadRequest noBookmark(String text) {
        String shown = text.substring(0, Math.min(80, text.length()));
        return new NotaryException.BadRequest("a bookmark is an offset and a digest, not '" + shown + "'", Code.QUERY_INVALID);
    }

    @Override
    public String toString() {
        return offset + "-" + digest;
    }
}
