package org.replicatednotary.client;

/**
 * How long to keep on. The same ids go out each time, so sending again is always safe.
 *
 * <p>The pause after failed attempt n, from 0, is {@code timeoutS * backoffBase^min(n, maxRestartCount)}, up to {@code jitter}
 * times itself longer; the server's own estimate takes its place when that is longer. From {@code deadlineS} after the first
 * attempt on, the caller gets the last NotNow. {@code attemptMaxS}: longest wait for one answer; {@code estimateMaxS}: longest
 * estimate of the server's that is waited for.
 */
public record RetryPolicy(
        double timeoutS,
        double backoffBase,
        int maxRestartCount,
        double jitter,
        double deadlineS,
        double attemptMaxS,
        double estimateMaxS) {
    public RetryPolicy {
        boolean positive = timeoutS > 0 && attemptMaxS > 0 && estimateMaxS > 0;
        if (!positive || !(backoffBase >= 1) || maxRestartCount < 0 || !(jitter >= 0)) {
            throw new NotaryException.ConfigError(
                    "a retry policy has positive times, no negative figure, and backoffBase is at least 1");
        }
    }

    public static RetryPolicy defaults() {
        return new RetryPolicy(0.05, 1.8, 3, 0.5, 30, 10, 86_400);
    }

    public RetryPolicy withDeadlineS(double found) {
        return new RetryPolicy(timeoutS, backoffBase, maxRestartCount, jitter, found, attemptMaxS, estimateMaxS);
    }

    public RetryPolicy withTimeoutS(double found) {
        return new RetryPolicy(found, backoffBase, maxRestartCount, jitter, deadlineS, attemptMaxS, estimateMaxS);
    }

    public RetryPolicy withAttemptMaxS(double found) {
        return new RetryPolicy(timeoutS, backoffBase, maxRestartCount, jitter, deadlineS, found, estimateMaxS);
    }

    /** The pause after failed attempt number {@code attempt}, from 0. {@code random} is uniform in [0, 1); estimate 0: none told. */
    public double delayS(int attempt, double estimateS, double random) {
        double ownS = timeoutS * Math.pow(backoffBase, Math.min(attempt, maxRestartCount));
        return Math.max(ownS * (1 + jitter * random), believedS(estimateS));
    }

    /** So much of a server's estimate is waited for: an absurd figure must not hold up anybody. */
    public double believedS(double estimateS) {
        return estimateS > 0 ? Math.min(estimateS, estimateMaxS) : 0;
    }
}
