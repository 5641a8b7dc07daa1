-- Commits count finished jobs; before, sweeps did. See functions/finished_counts.sql.
DROP TABLE penstock.finished_counts;
DROP FUNCTION IF EXISTS penstock.advance_finished_counts(bigint, bigint, integer);
DROP FUNCTION IF EXISTS penstock.uncount_retried(text);
CREATE TABLE penstock.finished_counts (
  queue text COLLATE "C" NOT NULL,
  state smallint NOT NULL CHECK (state BETWEEN 4 AND 6),
  n     bigint   NOT NULL CHECK (n BETWEEN -1e15 AND 1e15)  -- negative: jobs that were deleted or retried
) WITH (autovacuum_vacuum_scale_factor = 0.02);
INSERT INTO penstock.finished_counts (queue, state, n)
SELECT queue, state, count(*) FROM penstock.jobs WHERE state >= 4 GROUP BY queue, state;
