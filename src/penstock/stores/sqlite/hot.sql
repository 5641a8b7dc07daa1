-- The statements of commit, claim and renew. What is read for many units or jobs comes as one row of JSON: each row
-- more would be one more time that the writer's thread lets go of the interpreter.

-- name: look
SELECT
  (SELECT json_group_array(json_array(pk, state, attempt, token, unit))
   FROM json_each(?1) AS k CROSS JOIN jobs ON pk = k.value),
  (SELECT json_group_array(json_array(runs.id, version, status, closed, paused, unit))
   FROM json_each(?2) AS k CROSS JOIN runs ON runs.id = k.value),
  (SELECT json_group_array(units.id) FROM json_each(?3) AS k CROSS JOIN units ON units.id = k.value),
  (SELECT json_group_array(jobs.id) FROM json_each(?4) AS k CROSS JOIN jobs ON jobs.id = k.value),
  (SELECT json_group_array(name) FROM json_each(?5) AS k CROSS JOIN queues ON name = k.value),
  (SELECT json_group_array(json_array(name, sid, seq, ms))
   FROM json_each(?6) AS k CROSS JOIN streams ON name = k.value);

-- name: record
SELECT record FROM runs WHERE id = ?;

-- name: last_sid
SELECT coalesce(max(sid), 0) FROM streams;

-- name: add_jobs
INSERT INTO jobs (id, queue, name, state, priority, due, run, scope, rate_key, created, started_stream, started_head,
                  opts, payload)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL;

-- name: append
INSERT INTO events (pos, sid, seq, ms, body, kind)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?)) WHERE column1 IS NOT NULL;

-- name: head
SELECT sid, seq, ms FROM streams WHERE name = ?;

-- name: wake
UPDATE jobs SET state = 0, due = 0 WHERE id = ? AND state IN (1, 3) RETURNING queue;

-- name: hold
UPDATE jobs SET state = -1 WHERE pk = ?;

-- name: release
UPDATE jobs SET state = CASE WHEN due > ? THEN 1 ELSE 0 END
WHERE id > ? AND id < ? AND run = ? AND state = -1 RETURNING queue;

-- name: set_progress
UPDATE jobs SET progress = ? WHERE pk = ?;

-- name: cancel_jobs
UPDATE jobs SET state = 6, finished = ?, unit = ? WHERE id > ? AND id < ? AND run = ? AND state IN (-1, 0, 1, 3);

-- name: cancel_waits
UPDATE waits SET state = 'cancelled' WHERE run = ? AND state = 'open';

-- name: take
DELETE FROM jobs WHERE id = ? AND state IN (0, 1, 3, 5);

-- name: takeable
SELECT 1 FROM jobs WHERE id = ? AND state IN (0, 1, 3, 5);

-- name: memos_of
SELECT name, value FROM memos WHERE scope = ?;

-- name: open_wait
INSERT INTO waits (id, run, scope, kind, state, due, job, topic, key, body, pos)
VALUES (?1, ?2, ?3, ?4, 'open', ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (id) DO UPDATE SET state = 'open', due = ?5, job = ?6, topic = ?7, key = ?8, body = ?9;

-- name: awaited
SELECT 1 FROM waits WHERE topic = ? AND state = 'open' LIMIT 1;

-- name: wait_state
SELECT state FROM waits WHERE id = ?;

-- name: close_wait
UPDATE waits SET state = ? WHERE id = ? AND state = 'open';

-- name: state_version
SELECT version FROM states WHERE key = ? AND (expires IS NULL OR expires > ?);

-- name: set_state
INSERT INTO states (key, value, version, expires) VALUES (?1, ?2, 1, ?3)
ON CONFLICT (key) DO UPDATE SET value = ?2, version = version + 1, expires = ?3;

-- name: delete_state
DELETE FROM states WHERE key = ?;

-- name: schedule_slot
SELECT next FROM schedules WHERE id = ?;

-- name: move_schedule
UPDATE schedules SET next = ?, last = ?, fired = fired + 1 WHERE id = ?;

-- name: seen
SELECT 1 FROM once WHERE key = ?;

-- name: see
INSERT INTO once (key, at) VALUES (?, ?);

-- name: lines
SELECT json_group_array(json_array(
  q.value,
  coalesce((SELECT paused FROM queues WHERE name = q.value), 0),
  EXISTS (SELECT 1 FROM jobs WHERE queue = q.value AND state = 0),
  (SELECT min(due) FROM jobs WHERE queue = q.value AND state = 1),
  (SELECT min(lease) FROM jobs WHERE queue = q.value AND state = 2)
)) FROM json_each(?) AS q;

-- name: waiting
SELECT
  json_group_array(json_array(
    j.pk, j.id, j.name, j.scope, j.attempt, j.failures, j.crashes, j.run, j.started_stream, j.rate_key,
    r.version, r.closed, r.paused,
    length(j.payload), length(j.opts), length(j.started_head), length(r.record))),
  CAST(group_concat(concat(j.payload, j.opts, j.started_head, r.record), '') AS BLOB),
  json_group_array(json_array(s.name, s.sid, s.seq, s.ms)) FILTER (WHERE s.sid IS NOT NULL)
FROM (SELECT * FROM jobs WHERE queue = ? AND state = 0 ORDER BY priority, pk LIMIT ?) AS j
LEFT JOIN runs AS r ON r.id = j.run
LEFT JOIN streams AS s ON s.name = j.started_stream;

-- name: wake_delayed
UPDATE jobs SET state = 0 WHERE queue = ? AND state = 1 AND due <= ?;

-- name: expired
UPDATE jobs SET state = 0, crashes = crashes + 1, lease = NULL WHERE queue = ? AND state = 2 AND lease <= ?;

-- name: count_active
SELECT count(*) FROM jobs WHERE queue = ? AND state = 2;

-- name: drop_closed
UPDATE jobs SET state = 6, finished = ? WHERE pk = ?;

-- name: postpone
UPDATE jobs SET state = 1, due = ? WHERE pk = ?;

-- name: rate
SELECT until, used FROM rates WHERE queue = ? AND key = ?;

-- name: set_rate
INSERT INTO rates (queue, key, until, used) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue, key) DO UPDATE SET until = ?3, used = ?4;

-- name: renew
UPDATE jobs SET lease = ? WHERE pk = ? AND state = 2 AND token = ? AND attempt = ?;

-- name: run_closed
SELECT closed FROM runs WHERE id = ?;
