package org.replicatednotary.client;

import java.net.URI;
import java.net.URISyntaxException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The addresses of one notary, and which of them is used now. A connection string names one endpoint, or several with one scheme:
 * {@code https://a:8080,b:8080,c:8080/}. May be shared by threads.
 */
final class Endpoints {
    private static final int ENDPOINTS_MAX = 16;
    private static final Pattern FORM = Pattern.compile("(https?)://([^/?#\\s]+)((?:/[^/?#\\s,]+)*)/?");
    private static final String EXAMPLE = "https://notary.example:8080 or https://a.example:8080,b.example:8080";

    private final List<URI> known;
    private URI current;

    /** Throws ConfigError. */
    Endpoints(String given, Access access) {
        this.known = parse(given).stream().map(access::check).toList();
        this.current = known.get(0);
    }

    /** The endpoints of a connection string, in their order. No error repeats a password. Throws ConfigError. */
    static List<String> parse(String given) {
        if (given.contains("@")) {
            throw new NotaryException.ConfigError("an endpoint has no user and no password; it is like " + EXAMPLE);
        }
        Matcher form = FORM.matcher(given);
        if (!form.matches()) {
            throw new NotaryException.ConfigError("the endpoint '" + given + "' is not like " + EXAMPLE + ": the scheme once, no query");
        }
        List<String> found = new ArrayList<>();
        for (String host : form.group(2).split(",", -1)) {
            found.add(url(form.group(1), host, form.group(3)));
        }
        if (found.size() > ENDPOINTS_MAX) {
            throw new NotaryException.ConfigError(found.size() + " endpoints are given, at most " + ENDPOINTS_MAX + " may be");
        }
        if (new HashSet<>(found).size() != found.size()) {
            throw new NotaryException.ConfigError("an endpoint is given twice: " + String.join(", ", found));
        }
        return found;
    }

    private static String url(String scheme, String host, String path) {
        String text = scheme + "://" + host + path;
        try {
            URI uri = new URI(text);
            if (uri.getHost() != null && uri.getPort() != 0 && uri.getPort() <= 65_535 && !host.endsWith(":")) {
                return text;
            }
        } catch (URISyntaxException error) {
            // told below
        }
        throw new NotaryException.ConfigError("'" + host + "' is no host with a port; an endpoint is like " + EXAMPLE);
    }

    synchronized URI current() {
        return current;
    }

    boolean several() {
        return known.size() > 1;
    }

    /** The connection string with the one in use first. */
    synchronized String fromCurrent() {
        List<String> hosts = new ArrayList<>();
        int place = known.indexOf(current);
        for (int next = 0; next < known.size(); next++) {
            hosts.add(known.get((place + next) % known.size()).getRawAuthority());
        }
        return current.getScheme() + "://" + String.join(",", hosts) + current.getRawPath();
    }

    /**
     * Turn away from one that failed; whether the next one is new in this round, so that it may be asked without a pause. Another call
     * may have turned already. {@code asked}: those of this round, kept by the caller; empty again once the round is over.
     */
    synchronized boolean nextOfRound(URI failed, Set<URI> asked) {
        asked.add(failed);
        if (failed.equals(current)) {
            current = known.get((known.indexOf(failed) + 1) % known.size());
        }
        if (!asked.contains(current)) {
            return true;
        }
        asked.clear();
        return false;
    }

    /** Whether to ask the next endpoint at once: there was no answer, none of a notary's, or the replica is passive. */
    static boolean turns(int status, String body) {
        if (status < 500) {
            return status == 0;
        }
        return Documents.problemIn(body).map(problem -> problem.code().equals(Code.NOT_ACTIVE.name())).orElse(true);
    }
}
