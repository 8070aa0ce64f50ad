-- Without a digest: whichever the replica has left.
DELETE FROM contradicted_mark
WHERE replica = :replica AND digest = NVL(:digest, digest) AND own_disk = NVL(:own_disk, own_disk)
