package org.replicatednotary.client;

import com.fasterxml.jackson.annotation.JsonProperty;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;

/** Proof that the holder of {@code notaryKey} notarised {@code txId} with the content of {@code contentDigest}; all hexadecimal. */
public record Receipt(
        @JsonProperty("tx_id") String txId,
        @JsonProperty("content_digest") String contentDigest,
        @JsonProperty("leaf_index") long leafIndex,
        @JsonProperty("tree_size") long treeSize,
        @JsonProperty("path") List<String> path,
        @JsonProperty("notary_key") String notaryKey,
        @JsonProperty("signature") String signature) {
    private static final int PATH_MAX = 32;
    private static final byte[] LEAF = {0};
    private static final byte[] NODE = {1};

    /** Whether this proves, by that key (64 hexadecimal digits), that the transaction was notarised with its content. */
    public boolean verifies(String key) {
        try {
            byte[] expected = Bytes.fromHex("the notary's key", key, 32);
            boolean same = Arrays.equals(expected, Bytes.fromHex("notary_key", notaryKey, 32));
            if (!same || treeSize >= 1L << 32 || path == null || path.size() > PATH_MAX) {
                return false;
            }
            byte[] leaf = leafHash(Bytes.fromHex("tx_id", txId, 32), Bytes.fromHex("content_digest", contentDigest, 32));
            List<byte[]> nodes = path.stream().map(node -> Bytes.fromHex("path", node, 32)).toList();
            byte[] root = rootFromPath(leaf, leafIndex, treeSize, nodes);
            return root != null && Ed25519.holds(expected, statement(treeSize, root), Bytes.fromHex("signature", signature, 64));
        } catch (NotaryException.BadRequest error) {
            return false; // a field that is none: proves nothing
        }
    }

    /** The bytes that the notary signs for a batch. */
    static byte[] statement(long treeSize, byte[] root) {
        byte[] tag = "notary/receipt/1".getBytes(StandardCharsets.US_ASCII);
        return ByteBuffer.allocate(tag.length + 4 + root.length).put(tag).putInt((int) treeSize).put(root).array();
    }

    static byte[] leafHash(byte[] txId, byte[] digest) {
        return Bytes.sha256(LEAF, txId, digest);
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
