-- Retention finds what is old by an index, however much is kept.

CREATE INDEX runs_closed ON runs (updated, id) WHERE closed = 1;
CREATE INDEX jobs_ended ON jobs (queue, finished) WHERE state >= 4 AND run IS NULL;
CREATE INDEX rates_by_end ON rates (until);
CREATE INDEX dedupes_expiring ON dedupes (until) WHERE until IS NOT NULL;
-- A key without a time to live now goes with its job.
DELETE FROM dedupes WHERE until IS NULL AND job NOT IN (SELECT id FROM jobs);
