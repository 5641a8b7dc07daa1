-- Migrates version 12: commits count finished jobs. Before, sweeps did.
DROP TRIGGER jobs_deleted;
DROP TABLE finished_counts;
CREATE TABLE finished_counts (
  queue TEXT NOT NULL,
  state INTEGER NOT NULL CHECK (state BETWEEN 4 AND 6),
  n     INTEGER NOT NULL CHECK (n BETWEEN -0x4000000000000 AND 0x4000000000000),
  PRIMARY KEY (queue, state)
) WITHOUT ROWID, STRICT;
CREATE TRIGGER jobs_deleted AFTER DELETE ON jobs WHEN OLD.state >= 4 BEGIN
  INSERT INTO finished_counts (queue, state, n) VALUES (OLD.queue, OLD.state, -1)
  ON CONFLICT (queue, state) DO UPDATE SET n = n - 1;
END;
INSERT INTO finished_counts (queue, state, n) SELECT queue, state, count(*) FROM jobs WHERE state >= 4 GROUP BY queue, state;
