package org.replicatednotary.client;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Objects;
import java.util.regex.Pattern;

/** The token in force of one client. No error has it in its text. */
final class Bearer {
    private static final Pattern TOKEN = Pattern.compile("[A-Za-z0-9._~+/-]{1,8192}=*");
    private static final int TOKEN_MAX_CHARACTERS = 8_192;
    private final Access.Token source;
    private String token;
    private String stamp = "";

    Bearer(Access.Token source) {
        this.source = source;
        this.token = source instanceof Access.Text text ? text.value() : null;
    }

    /** The token to show now; null for a client without. Throws ConfigError or TokenUnavailable when there is none yet. */
    synchronized String token() {
        if (source instanceof Access.InFile inFile && token != null && !stampOf(inFile.file()).equals(stamp)) {
            renew(token);
        } else if (token == null && source != null) {
            ask();
        }
        return token;
    }

    /** Whether there may be another token later. */
    boolean canRenew() {
        return source != null && !(source instanceof Access.Text);
    }

    /** Ask for another token than the one that was refused; whether there is one now. Many may ask at once. */
    synchronized boolean renew(String refused) {
        if (Objects.equals(token, refused) && canRenew()) {
            try {
                ask();
            } catch (NotaryException.ConfigError | NotaryException.TokenUnavailable error) {
                return false; // of the source: the token in force stays
            }
        }
        return !Objects.equals(token, refused);
    }

    private void ask() {
        if (source instanceof Access.InFile inFile) {
            stamp = stampOf(inFile.file());
            token = checked(Party.readSecret(inFile.file()).strip(), inFile.file().toString());
        } else if (source instanceof Access.From from) {
            String given;
            try {
                given = from.source().get();
            } catch (RuntimeException error) { // whose text may be secret
                throw new NotaryException.TokenUnavailable("what gives the token threw " + error.getClass().getSimpleName());
            }
            token = checked(given, "what was given as a token");
        }
    }

    static String checked(String token, String origin) {
        if (token == null || token.length() > TOKEN_MAX_CHARACTERS || !TOKEN.matcher(token).matches()) {
            throw new NotaryException.ConfigError(
                    origin + " is no token: one word, at most " + TOKEN_MAX_CHARACTERS + " characters");
        }
        return token;
    }

    private static String stampOf(Path file) {
        try {
            return Files.getLastModifiedTime(file) + " " + Files.size(file);
        } catch (IOException error) {
            return "";
        }
    }
}
