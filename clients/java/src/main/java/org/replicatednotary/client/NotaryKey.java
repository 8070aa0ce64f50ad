package org.replicatednotary.client;

import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.Signature;
import java.security.spec.X509EncodedKeySpec;
import java.util.HexFormat;

/** A public key of the notary's. It says its algorithm: 32 bytes are Ed25519; 65, of which the first is 4, a point of P-256 (ECDSA). */
final class NotaryKey {
    private static final int P256_BYTES = 65;
    private static final byte[] P256_SPKI_HEAD =
            HexFormat.of().parseHex("3059301306072a8648ce3d020106082a8648ce3d030107034200");

    private NotaryKey() {}

    /** The bytes of a key from their digits. Throws BadRequest naming the field. */
    static byte[] fromHex(String name, String text) {
        if (text == null || text.length() != 2 * P256_BYTES) {
            return Bytes.fromHex(name, text, 32);
        }
        byte[] raw = Bytes.fromHex(name, text, P256_BYTES);
        if (raw[0] != 4) {
            throw new NotaryException.BadRequest(name + " is a point of P-256 with both its coordinates");
        }
        return raw;
    }

    /** Whether a signature of 64 bytes holds, by the key's own algorithm. */
    static boolean holds(byte[] key, byte[] message, byte[] signature) {
        if (key.length != P256_BYTES) {
            return Ed25519.holds(key, message, signature);
        }
        try {
            Signature check = Signature.getInstance("SHA256withECDSAinP1363Format");
            byte[] encoded = Bytes.joined(P256_SPKI_HEAD, key);
            check.initVerify(KeyFactory.getInstance("EC").generatePublic(new X509EncodedKeySpec(encoded)));
            check.update(message);
            return check.verify(signature);
        } catch (GeneralSecurityException error) {
            return false;
        }
    }
}
