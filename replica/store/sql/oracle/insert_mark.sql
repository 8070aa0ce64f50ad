INSERT INTO contradicted_mark (replica, mark, digest, own_disk) VALUES (:replica, :mark, :digest, :own_disk)
