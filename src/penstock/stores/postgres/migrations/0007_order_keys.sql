-- Jobs with the same order key run one after the other: see functions/order_keys.sql.
ALTER TABLE penstock.jobs ADD COLUMN order_key text COLLATE "C";
CREATE INDEX jobs_ordered ON penstock.jobs (queue, order_key, pk) WHERE state < 4 AND order_key IS NOT NULL;
CREATE TYPE penstock.order_ref AS (unit integer, queue text, key text);
ALTER TYPE penstock.new_job ADD ATTRIBUTE order_key text;
ALTER TYPE penstock.unit_extras ADD ATTRIBUTE orders penstock.order_ref[];  -- keys of jobs that units add or end
