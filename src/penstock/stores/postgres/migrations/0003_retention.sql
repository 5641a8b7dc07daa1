-- Retention finds what is old by an index, however much is kept.

-- `ended` is when a closed run last moved. Not `updated`: an index on it would make every commit of a run write all indexes.
ALTER TABLE penstock.runs ADD COLUMN ended bigint;
UPDATE penstock.runs SET ended = updated WHERE closed;
DROP INDEX penstock.runs_closed;
CREATE INDEX runs_ended ON penstock.runs (ended, id) WHERE ended IS NOT NULL;
CREATE INDEX jobs_ended ON penstock.jobs (queue, finished, pk) WHERE state >= 4 AND run IS NULL;
CREATE INDEX rates_by_end ON penstock.rates (until);
CREATE INDEX dedupe_keys_expiring ON penstock.dedupe_keys (until) WHERE until IS NOT NULL;
-- A key without a time to live now goes with its job.
DELETE FROM penstock.dedupe_keys AS d WHERE d.until IS NULL AND NOT EXISTS (
  SELECT 1 FROM penstock.jobs AS j WHERE j.id = d.job);
