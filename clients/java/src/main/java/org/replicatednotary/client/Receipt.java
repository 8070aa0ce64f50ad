package org.replicatednotary.client;

import com.fasterxml.jackson.annotation.JsonInclude;
import com.fasterxml.jackson.annotation.JsonProperty;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.stream.LongStream;

/**
 * Proof that the holder of {@code notaryKey} notarised {@code txId} with the content of {@code contentDigest}; all hexadecimal.
 * It proves its place as well; null if it has none.
 */
@JsonInclude(JsonInclude.Include.NON_NULL)
public record Receipt(
        @JsonProperty("tx_id") String txId,
        @JsonProperty("content_digest") String contentDigest,
        @JsonProperty("leaf_index") long leafIndex,
        @JsonProperty("tree_size") long treeSize,
        @JsonProperty("path") List<String> path,
        @JsonProperty("notary_key") String notaryKey,
        @JsonProperty("signature") String signature,
        @JsonProperty("version") long version,
        @JsonProperty("place") Place place) {
    private static final int PATH_MAX = 32;
    private static final int VERSION = 2;
    private static final byte[] LEAF = {0};
    private static final byte[] NODE = {1};

    /** Where and when a transaction was first notarised; {@code judgedUs} is microseconds since 1970, UTC. */
    public record Place(
            @JsonProperty("log_id") String logId,
            @JsonProperty("log_offset") long logOffset,
            @JsonProperty("epoch") long epoch,
            @JsonProperty("judged_us") long judgedUs) {
        private static final long NUMBER_MAX = (1L << 53) - 1;

        /** The bytes that a leaf commits to, after the content digest. */
        byte[] encoded() {
            boolean isNumbers = LongStream.of(logOffset, epoch, judgedUs).allMatch(one -> one >= 0 && one <= NUMBER_MAX);
            if (!isNumbers || logId == null || !logId.matches("[\\x21-\\x7e]{1,255}")) {
                throw new NotaryException.BadRequest("a place has numbers below 2^53, and a log id of visible characters");
            }
            byte[] id = logId.getBytes(StandardCharsets.US_ASCII);
            ByteBuffer bytes = ByteBuffer.allocate(26 + id.length).putLong(logOffset).putLong(epoch).putLong(judgedUs);
            return bytes.putShort((short) id.length).put(id).array();
        }
    }

    /** Whether this proves, by that key (64 hexadecimal digits, 130 of ECDSA P-256), that the transaction was notarised with its content, and at its place. */
    public boolean verifies(String key) {
        try {
            byte[] expected = NotaryKey.fromHex("the notary's key", key);
            boolean same = Arrays.equals(expected, NotaryKey.fromHex("notary_key", notaryKey));
            if (version != VERSION || !same || treeSize >= 1L << 32 || path == null || path.size() > PATH_MAX) {
                return false;
            }
            byte[] where = place == null ? new byte[0] : place.encoded();
            byte[] digest = Bytes.fromHex("content_digest", contentDigest, 32);
            byte[] leaf = leafHash(Bytes.fromHex("tx_id", txId, 32), digest, where);
            List<byte[]> nodes = path.stream().map(node -> Bytes.fromHex("path", node, 32)).toList();
            byte[] root = rootFromPath(leaf, leafIndex, treeSize, nodes);
            return root != null && NotaryKey.holds(expected, statement(treeSize, root), Bytes.fromHex("signature", signature, 64));
        } catch (NotaryException.BadRequest error) {
            return false; // a field that is none: proves nothing
        }
    }

    /** The bytes that the notary signs for a batch. */
    static byte[] statement(long treeSize, byte[] root) {
        byte[] tag = ("notary/receipt/" + VERSION).getBytes(StandardCharsets.US_ASCII);
        return ByteBuffer.allocate(tag.length + 4 + root.length).put(tag).putInt((int) treeSize).put(root).array();
    }

    static byte[] leafHash(byte[] txId, byte[] digest, byte[] place) {
        return Bytes.sha256(LEAF, txId, digest, place);
    }

    /** The root that a path leads to; null when it does not fit a leaf at that place of a tree of that size. */
    static byte[] rootFromPath(byte[] leaf, long leafIndex, long treeSize, List<byte[]> path) {
        if (leafIndex < 0 || leafIndex >= treeSize) {
            return null;
        }
        byte[] node = leaf;
        int used = 0;
        long index = leafIndex;
        for (long last = treeSize - 1; last > 0; last >>= 1, index >>= 1) {
            boolean isRight = index % 2 == 1;
            if (!isRight && index >= last) {
                continue; // no sibling on this level
            }
            if (used == path.size()) {
                return null;
            }
            byte[] sibling = path.get(used++);
            node = isRight ? Bytes.sha256(NODE, sibling, node) : Bytes.sha256(NODE, node, sibling);
        }
        return used == path.size() ? node : null;
    }
}
