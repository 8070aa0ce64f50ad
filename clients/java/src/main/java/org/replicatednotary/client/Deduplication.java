package org.replicatednotary.client;

import java.nio.ByteBuffer;

/** How far back an acceptance of the same command counts: within {@code durationS}, or above ledger offset {@code afterOffset}. */
public record Deduplication(Double durationS, Long afterOffset) {
    private static final double LIMIT_S = 100.0 * 366 * 86_400;

    /** Throws BadRequest for a period that the notary would refuse. */
    public Deduplication {
        if ((durationS == null) == (afterOffset == null)) {
            throw new NotaryException.BadRequest("a deduplication period has a duration or an offset, and not both");
        }
        if (durationS != null && !(durationS >= 0 && durationS <= LIMIT_S)) {
            throw new NotaryException.BadRequest("a deduplication period lies in 0.." + (long) LIMIT_S + " s, not " + durationS);
        }
        if (afterOffset != null) {
            Bytes.checkOffset("afterOffset", afterOffset);
        }
    }

    /** What canonical bytes of version 2 end with: 9 bytes. {@code period} may be null. */
    static byte[] encode(Deduplication period) {
        ByteBuffer raw = ByteBuffer.allocate(9);
        if (period == null) {
            return raw.array();
        }
        boolean isDuration = period.durationS != null;
        long value = isDuration ? (long) Math.rint(period.durationS * 1e6) : period.afterOffset; // rint: half goes to even
        return raw.put((byte) (isDuration ? 1 : 2)).putLong(value).array();
    }

    public static Deduplication within(double durationS) {
        return new Deduplication(durationS, null);
    }

    public static Deduplication after(long offset) {
        return new Deduplication(null, offset);
    }
}
