-- Jobs with the same order key run one after the other.
ALTER TABLE jobs ADD COLUMN order_key TEXT;
CREATE INDEX jobs_ordered ON jobs (queue, order_key, pk) WHERE state < 4 AND order_key IS NOT NULL;
