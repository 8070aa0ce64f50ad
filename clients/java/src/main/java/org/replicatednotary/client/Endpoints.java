package org.replicatednotary.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.net.URI;
import java.net.URISyntaxException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * The addresses of one notary, and which of them is used now. A connection string names one endpoint, or several with one scheme:
 * {@code https://a:8080,b:8080,c:8080/}. May be shared by threads.
 */
final class Endpoints {
    private static final int ENDPOINTS_MAX = 16;
    private static final Pattern FORM = Pattern.compile("(https?)://([^/?#\\s]+)((?:/[^/?#\\s,]+)*)/?");
    private static final String EXAMPLE = "https://notary.example:8080 or https://a.example:8080,b.example:8080";

    private final List<URI> configured;
    private List<URI> listed = List.of();
    private URI current;

    /** One text is a connection string; in a list of several each is one endpoint. Throws ConfigError. */
    Endpoints(List<String> given, Access access) {
        this.configured = parse(given).stream().map(access::check).toList();
        this.current = configured.get(0);
    }

    /** The endpoints of a list, in their order. Throws ConfigError. */
    static List<String> parse(List<String> given) {
        if (given.size() == 1) {
            return parse(given.get(0));
        }
        List<String> found = new ArrayList<>();
        given.forEach(one -> found.add(parseOne(one)));
        if (found.isEmpty()) {
            throw new NotaryException.ConfigError("no endpoint is given; one is like " + EXAMPLE);
        }
        if (found.stream().map(one -> one.substring(0, one.indexOf(':'))).distinct().count() > 1) {
            throw new NotaryException.ConfigError("all endpoints have http, or all of them https: " + String.join(", ", found));
        }
        return checked(found);
    }

    private static String parseOne(String given) {
        List<String> found = parse(given);
        if (found.size() != 1) {
            throw new NotaryException.ConfigError("in a list each text is one endpoint, not '" + given + "'");
        }
        return found.get(0);
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
        return checked(found);
    }

    private static List<String> checked(List<String> found) {
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

    /**
     * The live endpoints of a list ({@code GET /v1/endpoints}) that a client may use beside those that it was given: of the same
     * scheme, and none over plain HTTP for a client with a token, because anybody on the way could have written the list.
     */
    static List<URI> usable(JsonNode list, List<URI> configured, boolean withToken) {
        String scheme = configured.get(0).getScheme();
        Set<URI> found = new LinkedHashSet<>();
        if (!scheme.equals("http") || !withToken) {
            for (JsonNode entry : list.path("endpoints")) {
                if (entry.path("live").asBoolean(false) && entry.path("url").isTextual()) {
                    asEndpoint(entry.path("url").asText()).filter(url -> url.getScheme().equals(scheme)).ifPresent(found::add);
                }
            }
        }
        configured.forEach(found::remove);
        return found.stream().limit(ENDPOINTS_MAX - configured.size()).toList();
    }

    /** Whether nobody in a list is live: it is of a replica whose core is silent, and tells nothing. */
    static boolean seesNobody(JsonNode list) {
        boolean isAnyLive = false;
        for (JsonNode entry : list.path("endpoints")) {
            isAnyLive |= entry.path("live").asBoolean(false);
        }
        return !isAnyLive && !list.path("endpoints").isEmpty();
    }

    private static Optional<URI> asEndpoint(String text) {
        try {
            return Optional.of(URI.create(parseOne(text)));
        } catch (NotaryException.ConfigError error) {
            return Optional.empty();
        }
    }

    synchronized URI current() {
        return current;
    }

    /** Whether there is another one to turn to. One alone is taken as a balanced endpoint, and used alone. */
    boolean several() {
        return configured.size() > 1;
    }

    List<URI> configured() {
        return configured;
    }

    /** Those that were given, and those that a replica listed. */
    synchronized List<URI> known() {
        return Stream.of(configured, listed).flatMap(Collection::stream).toList();
    }

    /** All that are known, the one in use first. */
    synchronized List<String> fromCurrent() {
        List<URI> found = new ArrayList<>(known());
        Collections.rotate(found, -found.indexOf(current));
        return found.stream().map(URI::toString).toList();
    }

    /** Use the endpoint of the replica that is active. */
    synchronized void prefer(URI endpoint) {
        if (known().contains(endpoint)) {
            current = endpoint;
        }
    }

    /** Replace what was listed before. What was given stays for ever. */
    synchronized void takeList(List<URI> found) {
        listed = found;
        if (!known().contains(current)) {
            current = configured.get(0);
        }
    }

    /**
     * Turn away from one that failed; whether the next one is new in this round, so that it may be asked without a pause. Another call
     * may have turned already. {@code asked}: those of this round, kept by the caller; empty again once the round is over.
     */
    synchronized boolean nextOfRound(URI failed, Set<URI> asked) {
        asked.add(failed);
        if (failed.equals(current)) {
            List<URI> known = known();
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
