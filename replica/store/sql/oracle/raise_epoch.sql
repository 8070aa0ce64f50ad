UPDATE participant SET epoch = :epoch
