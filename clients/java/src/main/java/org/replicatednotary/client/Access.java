package org.replicatednotary.client;

import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.function.Supplier;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * How a client proves who it is, and whom it takes for the notary. Null: not used. {@code caFile} has the authorities that may
 * vouch for the server (PEM; null: the platform's own); certificate and key (PEM, the key PKCS#8 of mode 0600) are for an API
 * that asks clients for one.
 */
public record Access(Token token, Path caFile, Path certificateFile, Path keyFile) {
    private static final char[] NO_PASSWORD = {};

    /** A source of tokens: it is asked again when the API refuses what it gave. */
    public sealed interface Token {
        static Token of(String token) {
            return new Text(Bearer.checked(token, "the token"));
        }

        /** A file with a token, mode 0600; read again when it changes. */
        static Token inFile(Path file) {
            return new InFile(file);
        }

        static Token from(Supplier<String> source) {
            return new From(source);
        }
    }

    record Text(String value) implements Token {
        @Override
        public String toString() {
            return "a token";
        }
    }

    record InFile(Path file) implements Token {}

    record From(Supplier<String> source) implements Token {}

    /** For an API that asks nobody who he is. */
    public static Access open() {
        return new Access(null, null, null, null);
    }

    public static Access withToken(Token token) {
        return new Access(token, null, null, null);
    }

    public Access withCaFile(Path file) {
        return new Access(token, file, certificateFile, keyFile);
    }

    public Access withCertificate(Path certificate, Path key) {
        return new Access(token, caFile, certificate, key);
    }

    /** The endpoint's URI. Throws ConfigError: it is none of the API, or a token would travel in the clear. */
    URI check(String endpoint) {
        URI uri;
        try {
            uri = new URI(endpoint.replaceAll("/+$", ""));
        } catch (URISyntaxException error) {
            throw new NotaryException.ConfigError("the endpoint '" + endpoint + "' is not like https://notary.example:8080");
        }
        boolean isTls = "https".equals(uri.getScheme());
        if ((!isTls && !"http".equals(uri.getScheme())) || uri.getHost() == null) {
            throw new NotaryException.ConfigError("the endpoint '" + endpoint + "' is not like https://notary.example:8080");
        }
        if (!isTls && (caFile != null || certificateFile != null || keyFile != null)) {
            throw new NotaryException.ConfigError(endpoint + " is plain HTTP: the certificates would protect nothing");
        }
        if (!isTls && token != null && !isLoopback(uri.getHost())) {
            throw new NotaryException.ConfigError(
                    "a token for " + endpoint + " would be sent in the clear: use https", Code.PLAINTEXT_EXPOSED);
        }
        if ((certificateFile == null) != (keyFile == null)) {
            throw new NotaryException.ConfigError("a client's certificate and its key go together");
        }
        return uri;
    }

    /** What protects connections; null: the platform's own. Throws ConfigError. */
    SSLContext tls() {
        if (caFile == null && certificateFile == null) {
            return null;
        }
        try {
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(
                    certificateFile == null ? null : keys().getKeyManagers(),
                    caFile == null ? null : authorities().getTrustManagers(),
                    null);
            return context;
        } catch (GeneralSecurityException | IOException | IllegalArgumentException error) {
            throw new NotaryException.ConfigError("the client's certificates cannot be used: " + error.getClass().getSimpleName());
        }
    }

    private TrustManagerFactory authorities() throws GeneralSecurityException, IOException {
        KeyStore store = emptyStore();
        int number = 0;
        for (Certificate authority : certificates(caFile)) {
            store.setCertificateEntry("ca" + number++, authority);
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return factory;
    }

    private KeyManagerFactory keys() throws GeneralSecurityException, IOException {
        Certificate[] chain = certificates(certificateFile);
        byte[] der = Party.der(Party.readSecret(keyFile));
        PrivateKey key = KeyFactory.getInstance(chain[0].getPublicKey().getAlgorithm())
                .generatePrivate(new PKCS8EncodedKeySpec(der));
        KeyStore store = emptyStore();
        store.setKeyEntry("client", key, NO_PASSWORD, chain);
        KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(store, NO_PASSWORD);
        return factory;
    }

    private static KeyStore emptyStore() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, NO_PASSWORD);
        return store;
    }

    private static Certificate[] certificates(Path file) throws GeneralSecurityException, IOException {
        try (InputStream in = Files.newInputStream(file)) {
            Certificate[] found =
                    CertificateFactory.getInstance("X.509").generateCertificates(in).toArray(new Certificate[0]);
            if (found.length == 0) {
                throw new NotaryException.ConfigError(file + " has no certificate");
            }
            return found;
        }
    }

    /** Whether a host is this machine and no other: a name that only looks like an address is not. */
    static boolean isLoopback(String host) {
        return host.equals("localhost") || host.equals("[::1]") || host.matches("127(\\.[0-9]{1,3}){3}");
    }
}
