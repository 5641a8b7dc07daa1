"""Compare Penstock with other engines: the same work on the same disk, in interleaved rounds."""
