package org.replicatednotary.client;

import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.SecureRandom;
import java.security.Signature;
import java.security.interfaces.EdECPrivateKey;
import java.security.spec.PKCS8EncodedKeySpec;
import java.security.spec.X509EncodedKeySpec;
import java.util.Arrays;
import java.util.HexFormat;

/** The platform's Ed25519, with keys as their 32 bytes. */
final class Ed25519 {
    private static final byte[] SPKI_HEAD = HexFormat.of().parseHex("302a300506032b6570032100");

    private Ed25519() {}

    /** The pair of a private key's 32 bytes. */
    static KeyPair fromSeed(byte[] seed) throws GeneralSecurityException {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("Ed25519");
        generator.initialize(255, new Fixed(seed)); // the platform derives a public key in no other way
        KeyPair pair = generator.generateKeyPair();
        byte[] found = ((EdECPrivateKey) pair.getPrivate()).getBytes().orElseThrow();
        if (!Arrays.equals(found, seed)) {
            throw new GeneralSecurityException("the platform does not take a private key as it is");
        }
        return pair;
    }

    /** The pair of a PKCS#8 document. */
    static KeyPair fromPkcs8(byte[] der) throws GeneralSecurityException {
        PrivateKey key = KeyFactory.getInstance("Ed25519").generatePrivate(new PKCS8EncodedKeySpec(der));
        return fromSeed(((EdECPrivateKey) key).getBytes().orElseThrow());
    }

    static KeyPair generate() throws GeneralSecurityException {
        return KeyPairGenerator.getInstance("Ed25519").generateKeyPair();
    }

    static byte[] publicBytes(PublicKey key) {
        byte[] encoded = key.getEncoded();
        return Arrays.copyOfRange(encoded, SPKI_HEAD.length, encoded.length);
    }

    static byte[] sign(PrivateKey key, byte[] message) {
        try {
            Signature signature = Signature.getInstance("Ed25519");
            signature.initSign(key);
            signature.update(message);
            return signature.sign();
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("the platform does not sign", error);
        }
    }

    /** Whether a signature holds; a key or signature that is none holds for nothing. */
    static boolean holds(byte[] publicKey, byte[] message, byte[] signature) {
        try {
            byte[] encoded = Arrays.copyOf(SPKI_HEAD, SPKI_HEAD.length + publicKey.length);
            System.arraycopy(publicKey, 0, encoded, SPKI_HEAD.length, publicKey.length);
            Signature check = Signature.getInstance("Ed25519");
            check.initVerify(KeyFactory.getInstance("Ed25519").generatePublic(new X509EncodedKeySpec(encoded)));
            check.update(message);
            return check.verify(signature);
        } catch (GeneralSecurityException error) {
            return false;
        }
    }

    /** Gives out a private key that exists already. */
    private static final class Fixed extends SecureRandom {
        private static final long serialVersionUID = 1L;
        private final byte[] seed;

        Fixed(byte[] seed) {
            this.seed = seed.clone();
        }

        @Override
        public void nextBytes(byte[] bytes) {
            System.arraycopy(seed, 0, bytes, 0, bytes.length);
        }
    }
}
