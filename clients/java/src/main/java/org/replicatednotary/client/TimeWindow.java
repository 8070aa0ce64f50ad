package org.replicatednotary.client;

import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** {@code [fromUs, untilUs)} in microseconds since 1970 UTC; null leaves that side open, but not both. */
public record TimeWindow(Long fromUs, Long untilUs) {
    private static final long JSON_TIME_MAX_US = 253_402_300_799_999_999L; // the end of the year 9999

    public static TimeWindow from(Instant from) {
        return new TimeWindow(microseconds(from), null);
    }

    public static TimeWindow until(Instant until) {
        return new TimeWindow(null, microseconds(until));
    }

    public static TimeWindow between(Instant from, Instant until) {
        return new TimeWindow(microseconds(from), microseconds(until));
    }

    /** Throws BadRequest naming the rule that is broken. */
    void check() {
        if (fromUs == null && untilUs == null) {
            throw new NotaryException.BadRequest("a time window has at least one end");
        }
        if ((fromUs != null && fromUs < 0) || (untilUs != null && untilUs < 0)) {
            throw new NotaryException.BadRequest("a time window's ends lie behind 1970");
        }
        if (fromUs != null && untilUs != null && fromUs >= untilUs) {
            throw new NotaryException.BadRequest("a time window starts before it ends");
        }
    }

    static long microseconds(Instant instant) {
        return ChronoUnit.MICROS.between(Instant.EPOCH, instant);
    }

    /** RFC 3339. Throws BadRequest beyond the year 9999, which JSON cannot say. */
    static String format(long timeUs) {
        if (timeUs > JSON_TIME_MAX_US) {
            throw new NotaryException.BadRequest("a time in JSON ends with the year 9999");
        }
        return Instant.EPOCH.plus(timeUs, ChronoUnit.MICROS).toString();
    }
}
