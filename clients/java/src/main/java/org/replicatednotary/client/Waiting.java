package org.replicatednotary.client;

import java.net.URI;

/** Something that waits for an endpoint since a time. */
final class Waiting {
    final URI endpoint;
    private volatile double sinceS = Connection.clockS();
    private volatile double usualS = Lookout.WAIT_MAX_S;
    private boolean isGivenUp;
    private Runnable end = () -> {};

    Waiting(URI endpoint) {
        this.endpoint = endpoint;
    }

    double sinceS() {
        return sinceS;
    }

    /** It waits since now. */
    synchronized void now() {
        sinceS = Connection.clockS();
    }

    /** It waits since now, unless it waited already. */
    void nowAsWell() {
        if (sinceS == Double.POSITIVE_INFINITY) {
            now();
        }
    }

    /** So long it waits where all is well. A feed is quiet while nothing is published. */
    void usually(double durationS) {
        usualS = durationS;
    }

    double usualS() {
        return usualS;
    }

    /** Its server answered the lookout, which asked then: as good as a line. */
    synchronized void heard(double atS) {
        if (usualS > Lookout.WAIT_MAX_S) {
            sinceS = Math.max(sinceS, atS);
        }
    }

    /** It waits for nothing. */
    synchronized void forNothing() {
        sinceS = Double.POSITIVE_INFINITY;
    }

    /** How it is ended from now on; at once where it was given up before. */
    synchronized void endedBy(Runnable how) {
        end = how;
        if (isGivenUp) {
            end.run();
        }
    }

    /** End it, from any thread. May be repeated. */
    synchronized void giveUp() {
        isGivenUp = true;
        end.run();
    }
}
