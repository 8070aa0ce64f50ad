-- Without a digest: whichever the replica has left.
DELETE FROM contradicted_mark WHERE replica = :replica AND digest = NVL(:digest, digest)
