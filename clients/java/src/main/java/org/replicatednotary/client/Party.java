package org.replicatednotary.client;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.GeneralSecurityException;
import java.security.KeyPair;
import java.util.Base64;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;

/**
 * Someone who asks the notary: an X.500 name, spelt as it is registered, the ledger that it signs for, by its id of 32 hexadecimal
 * digits ({@link NotaryClient#describe} tells it), and the key that signs for it.
 */
public final class Party {
    private final String name;
    private final String ledgerId;
    private final KeyPair keys;

    private Party(String name, String ledgerId, KeyPair keys) {
        if (ledgerId == null) {
            throw new NotaryException.BadRequest("the replica has not read its log yet: ask again for the ledger's id");
        }
        this.name = name;
        this.ledgerId = Bytes.toHex(Bytes.fromHex("a ledger id", ledgerId, 16));
        this.keys = keys;
    }

    /** From the key file that {@code notary keys create} makes, PKCS#8 PEM of mode 0600. Throws ConfigError, and BadRequest for no ledger id. */
    public static Party fromFile(String name, String ledgerId, Path file) {
        return fromPem(name, ledgerId, readSecret(file));
    }

    /** From PKCS#8 PEM. Throws ConfigError, and BadRequest for no ledger id. */
    public static Party fromPem(String name, String ledgerId, String pem) {
        try {
            return new Party(name, ledgerId, Ed25519.fromPkcs8(der(pem)));
        } catch (GeneralSecurityException | IllegalArgumentException error) {
            throw new NotaryException.ConfigError("the key is no Ed25519 private key in PKCS#8 PEM"); // never with what it holds
        }
    }

    /** From the 64 hexadecimal digits of a private key. */
    public static Party fromSeed(String name, String ledgerId, String seed) {
        try {
            return new Party(name, ledgerId, Ed25519.fromSeed(Bytes.fromHex("a seed", seed, 32)));
        } catch (GeneralSecurityException error) {
            throw new NotaryException.ConfigError(error.getMessage());
        }
    }

    /** With a new key, which the operator must register. */
    public static Party generate(String name, String ledgerId) {
        try {
            return new Party(name, ledgerId, Ed25519.generate());
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error); // every Java platform from 15 on has it
        }
    }

    public String name() {
        return name;
    }

    /** The ledger that it signs for, 32 hexadecimal digits. */
    public String ledgerId() {
        return ledgerId;
    }

    /** The public key, to be registered. */
    public byte[] publicKey() {
        return Ed25519.publicBytes(keys.getPublic());
    }

    /** As {@link #sign(Transaction, Deduplication)}, without a deduplication period. */
    public Submission sign(Transaction transaction) {
        return sign(transaction, null);
    }

    /**
     * A signed submission. The signature covers all but the submission id, the deduplication period included (null: none is asked
     * for): nobody who relays it can change it. The user is that of the token, if there is one. Throws BadRequest naming the rule
     * that is broken.
     */
    public Submission sign(Transaction transaction, Deduplication period) {
        String txId = transaction.txId() == null ? Transaction.random(32) : transaction.txId().toLowerCase(Locale.ROOT);
        Request request =
                new Request(ledgerId, txId, transaction.inputs(), transaction.references(), transaction.window(), name);
        List<String> actAs = transaction.actAs() == null ? List.of(name) : Request.sortedTexts(transaction.actAs());
        String userId = transaction.userId() == null ? Transaction.ANONYMOUS : transaction.userId();
        String commandId = transaction.commandId() == null ? txId : transaction.commandId();
        String submissionId = transaction.submissionId() == null ? Transaction.random(16) : transaction.submissionId();
        Request.checkCommand(userId, commandId, actAs, submissionId);
        byte[] canonical = request.encodeWithCommand(userId, commandId, actAs, period);
        byte[] signature = Ed25519.sign(keys.getPrivate(), canonical);
        return new Submission(request, canonical, publicKey(), signature, userId, commandId, actAs, submissionId, period);
    }

    /** The first document of a PEM text. Throws IllegalArgumentException. */
    static byte[] der(String pem) {
        String text = pem.replaceAll("(?s).*?-----BEGIN [A-Z ]+-----(.*?)-----END.*", "$1");
        return Base64.getMimeDecoder().decode(text);
    }

    /** What a secret file holds. Throws ConfigError, KEY_UNSAFE when others may read it. */
    static String readSecret(Path file) {
        try {
            Set<PosixFilePermission> mode = Files.getPosixFilePermissions(file);
            Set<PosixFilePermission> own = EnumSet.of(
                    PosixFilePermission.OWNER_READ, PosixFilePermission.OWNER_WRITE, PosixFilePermission.OWNER_EXECUTE);
            if (!own.containsAll(mode)) {
                String found = PosixFilePermissions.toString(mode);
                throw new NotaryException.ConfigError(file + " has mode " + found + ", it must be rw-------", Code.KEY_UNSAFE);
            }
        } catch (UnsupportedOperationException error) {
            // a file system without such modes
        } catch (IOException error) {
            throw new NotaryException.ConfigError(file + " cannot be read");
        }
        try {
            return Files.readString(file, StandardCharsets.UTF_8);
        } catch (IOException error) {
            throw new NotaryException.ConfigError(file + " cannot be read");
        }
    }
}
