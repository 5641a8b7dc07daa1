-- The table and the statements of the baseline without an engine.

-- name: schema
CREATE TABLE jobs (
  pk bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL, state smallint NOT NULL DEFAULT 0,
  payload jsonb NOT NULL, result jsonb
) WITH (fillfactor = 80);
CREATE INDEX jobs_waiting ON jobs (queue, pk) WHERE state = 0;

-- name: add
INSERT INTO jobs (queue, payload) SELECT 'noop', '{"sent": 1.0}' FROM generate_series(1, $1);

-- name: take
UPDATE jobs SET state = 1 WHERE pk = ANY (ARRAY(
  SELECT pk FROM jobs WHERE queue = 'noop' AND state = 0 ORDER BY pk LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING pk, payload;

-- name: finish
UPDATE jobs SET state = 2, result = '1' WHERE pk = ANY ($1::bigint[]) AND state = 1;
