-- Insert the rows of n finished jobs, ten per run, with one event each.

-- name: runs
INSERT INTO penstock.runs (id, version, kind, flow, status, closed, paused, created, updated, unit, record)
SELECT 'old-' || i, 3, 'flow', 'three', 'completed', true, false, i, i, 'old-' || i || '.u', '\x7b7d'
FROM generate_series(1, $1::bigint / 10) AS i;

-- name: streams
INSERT INTO penstock.streams (name, seq, ms) SELECT 'nq:flow:old-' || i, 10, i FROM generate_series(1, $1::bigint / 10) AS i;

-- A job that was added, claimed and finished leaves room for two more rows after a vacuum.
-- name: low_fillfactor
ALTER TABLE penstock.jobs SET (fillfactor = 33);

-- name: jobs
INSERT INTO penstock.jobs (pk, id, queue, name, state, priority, due, attempt, token, unit, run, created, finished,
                           started_stream, started_prefix, opts, payload, result)
SELECT nextval('penstock.jobs_pk'), 'old-' || (i / 10 + 1) || '.s.' || i, 'probe', 's', 4, 0, 0, 1, 't.' || i,
       'u.' || i, 'old-' || (i / 10 + 1), i, i, 'nq:flow:old-' || (i / 10 + 1), '{"kind":"step.started","meta":{', '\x7b7d',
       '{"orderId":4711,"customer":"c-1042"}', '{}'
FROM generate_series(1, $1::bigint) AS i;

-- name: default_fillfactor
ALTER TABLE penstock.jobs SET (fillfactor = 80);

-- name: events
INSERT INTO penstock.events (sid, seq, ms, stamp, n, kind, body)
SELECT 1 + (i - 1) / 10, 1 + (i - 1) % 10, i, i - 1000000000, 0, NULL,
       '{"kind":"step.completed","subject":"old","flow":"three","step":"one","data":{"orderId":4711,"customer":"c-1042"}}'
FROM generate_series(1, $1::bigint) AS i;
