-- Statements of commit, claim and renew.

-- name: fence
SELECT state, attempt, token, unit FROM jobs WHERE pk = ?;

-- name: fence_in_run
SELECT state, attempt, token, unit, (SELECT closed FROM runs WHERE id = ?2) FROM jobs WHERE pk = ?1;

-- name: run_version
SELECT version, status, closed, paused, unit, record FROM runs WHERE id = ?;

-- name: fence_and_run
SELECT j.state, j.attempt, j.token, j.unit, r.version, r.status, r.closed, r.paused, r.unit, r.record
FROM jobs j LEFT JOIN runs r ON r.id = ?2 WHERE j.pk = ?1;

-- name: fence_run_and_waits
SELECT j.state, j.attempt, j.token, j.unit, r.version, r.status, r.closed, r.paused, r.unit, r.record,
       (SELECT count(*) FROM (SELECT 1 FROM waits WHERE run = ?2 AND state = 'pending' LIMIT ?3))
FROM jobs j LEFT JOIN runs r ON r.id = ?2 WHERE j.pk = ?1;

-- name: insert_run
INSERT INTO runs (id, version, kind, flow, status, closed, paused, created, updated, unit, record)
VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_run_key
INSERT OR IGNORE INTO run_keys (key, created, run) SELECT ?1, created, id FROM runs WHERE id = ?2;

-- name: set_run_parent
UPDATE runs SET parent = ?, root = ?, depth = ?, call = ? WHERE id = ?;

-- name: update_run
UPDATE runs SET version = ?, updated = ?, unit = ?, record = ? WHERE id = ?;

-- name: update_run_status
UPDATE runs SET version = ?, updated = ?, unit = ?, record = ?, status = ?, closed = ?, paused = ? WHERE id = ?;

-- name: stream_head
SELECT sid, seq, ms FROM streams WHERE name = ?;

-- name: insert_stream
INSERT INTO streams (name, seq, ms) VALUES (?, ?, ?);

-- name: update_stream_head
UPDATE streams SET seq = ?, ms = ? WHERE sid = ?;

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM events WHERE sid = ?1 AND seq < ?2;

-- name: last_pos
SELECT coalesce(max(pos), 0) FROM events WHERE ?1 IS NOT NULL AND pos < ?2;

-- name: insert_event
INSERT INTO events (pos, sid, seq, ms, body, kind, original) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: insert_job
INSERT INTO jobs (id, queue, name, state, priority, due, run, scope, rate_key, created, started_stream, started_prefix,
                  opts, payload, order_key, error_group)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING;

-- name: finish_job
UPDATE jobs SET state = ?, finished = ?, unit = ?, result = ?, lease = NULL WHERE pk = ?;

-- name: count_finished
INSERT INTO finished_counts (queue, state, n) VALUES (?1, ?2, ?3) ON CONFLICT (queue, state) DO UPDATE SET n = n + ?3;

-- name: fail_job
UPDATE jobs SET state = ?, finished = ?, unit = ?, error = ?, failures = min(failures, 1000000000) + 1, lease = NULL, attempt = max(attempt - ?, 0)
WHERE pk = ?;

-- name: fail_unclaimed_job
UPDATE jobs SET state = 5, finished = ?, error = ?, lease = NULL WHERE pk = ? RETURNING order_key;

-- name: retry_job
UPDATE jobs SET state = 1, due = ?, unit = ?, error = ?, failures = min(failures, 1000000000) + 1, lease = NULL WHERE pk = ?;

-- name: release_job
UPDATE jobs SET state = ?, due = ?, unit = ?, lease = NULL, attempt = max(attempt - ?, 0) WHERE pk = ?;

-- name: suspend_job
UPDATE jobs SET state = ?, due = ?, unit = ?, lease = NULL, attempt = max(attempt - ?, 0) WHERE pk = ?;

-- name: sleeping_job
SELECT pk, queue FROM jobs WHERE id = ? AND state IN (1, 3);

-- name: wake_job
UPDATE jobs SET state = 0, due = 0 WHERE pk = ?;

-- name: hold_job
UPDATE jobs SET state = -1 WHERE pk = ?;

-- name: release_held_jobs
UPDATE jobs SET state = CASE WHEN due > ? THEN 1 ELSE 0 END
WHERE id > ? AND id < ? AND run = ? AND state = -1 RETURNING queue;

-- name: set_progress
UPDATE jobs SET progress = ? WHERE pk = ?;

-- name: cancel_jobs
UPDATE jobs SET state = 6, finished = ?, unit = ? WHERE id > ? AND id < ? AND run = ? AND state IN (-1, 0, 1, 3)
RETURNING queue;

-- name: cancel_waits
UPDATE waits SET state = 'cancelled', settled = ?2 WHERE run = ?1 AND state = 'pending';

-- name: remove_job
DELETE FROM jobs WHERE id = ? AND (state IN (0, 1, 3, 5) OR (state = -1 AND order_key IS NOT NULL))
RETURNING queue, order_key;

-- name: removable_job
SELECT 1 FROM jobs WHERE id = ? AND (state IN (0, 1, 3, 5) OR (state = -1 AND order_key IS NOT NULL));

-- name: open_job
SELECT 1 FROM jobs WHERE id = ?1 AND state < 4 AND (?2 IS NULL OR attempt = ?2);

-- name: cancel_any_job
UPDATE jobs SET state = 6, finished = ?, unit = ?, error = ?, lease = NULL WHERE id = ? AND state < 4
RETURNING queue, order_key;

-- name: open_job_of_order_key
SELECT 1 FROM jobs WHERE queue = ? AND order_key = ? AND state < 4 LIMIT 1;

-- name: release_order_head
UPDATE jobs SET state = CASE WHEN due > ?3 THEN 1 ELSE 0 END WHERE state = -1 AND pk = (
  SELECT pk FROM jobs INDEXED BY jobs_ordered WHERE queue = ?1 AND order_key = ?2 AND state < 4 ORDER BY pk LIMIT 1);

-- name: move_to_end_of_order
UPDATE jobs SET state = -1, pk = (SELECT max(pk) + 1 FROM jobs) WHERE id = ?;

-- name: insert_memo
INSERT INTO memos (scope, name, value) VALUES (?, ?, ?) ON CONFLICT (scope, name) DO NOTHING;

-- name: memos_of_scopes
SELECT m.scope, m.name, m.value FROM json_each(?) s CROSS JOIN memos m ON m.scope = s.value;

-- name: upsert_wait
INSERT INTO waits (id, run, scope, kind, state, due, job, topic, key, body, pos, created)
VALUES (?1, ?2, ?3, ?4, 'pending', ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (id) DO UPDATE SET state = 'pending', due = ?5, job = ?6, topic = ?7, key = ?8, body = ?9, settled = NULL;

-- name: has_pending_wait
SELECT 1 FROM waits WHERE topic = ? AND state = 'pending' LIMIT 1;

-- name: insert_delivery
INSERT INTO jobs (id, queue, name, state, priority, due, created, opts, payload) VALUES (?, ?, ?, 0, 0, 0, ?, ?, ?);

-- name: wait_state
SELECT state, final FROM waits WHERE id = ?;

-- name: settle_wait
UPDATE waits SET state = ?, settled = ?, final = ? WHERE id = ? AND state = 'pending';

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

-- name: once_key
SELECT 1 FROM once WHERE key = ?;

-- name: insert_once_key
INSERT INTO once (key, at) VALUES (?, ?);

-- name: applied_unit
SELECT 1 FROM units WHERE id = ?;

-- name: insert_unit
INSERT INTO units (id, at) VALUES (?, ?);

-- name: peek_queue
SELECT (SELECT paused FROM queues WHERE name = ?1), (SELECT until FROM holds WHERE queue = ?1),
       (SELECT min(due) FROM jobs WHERE queue = ?1 AND state = 1),
       (SELECT min(lease) FROM jobs WHERE queue = ?1 AND state = 2),
       EXISTS (SELECT 1 FROM jobs WHERE queue = ?1 AND state = 0);

-- name: hold_queue
INSERT INTO holds (queue, until) VALUES (?1, ?2) ON CONFLICT (queue) DO UPDATE SET until = max(until, ?2);

-- name: dedupe_holder
SELECT d.job FROM dedupes d LEFT JOIN jobs j ON j.id = d.job
WHERE d.queue = ?1 AND d.key = ?2 AND (d.until > ?4 OR (d.until IS NULL AND j.state < 4))
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = ?3);

-- name: set_dedupe_key
INSERT INTO dedupes (queue, key, job, until) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue, key) DO UPDATE SET job = ?3, until = ?4;

-- name: delete_job
DELETE FROM jobs WHERE pk = ? RETURNING coalesce(scope, id), id;

-- name: delete_older_jobs
DELETE FROM jobs WHERE pk IN (
  SELECT pk FROM jobs WHERE queue = ? AND state = ? AND state >= 4 AND finished <= ? AND run IS NULL LIMIT 1000)
RETURNING coalesce(scope, id), id;

-- name: delete_surplus_jobs
DELETE FROM jobs WHERE pk IN (
  SELECT pk FROM jobs WHERE queue = ?1 AND state = ?2 AND state >= 4 AND run IS NULL AND (finished, pk) <= (
    SELECT finished, pk FROM jobs WHERE queue = ?1 AND state = ?2 AND state >= 4 AND run IS NULL
    ORDER BY finished DESC, pk DESC LIMIT 1 OFFSET ?3)
  LIMIT 1000)
RETURNING coalesce(scope, id), id;

-- name: insert_queue
INSERT INTO queues (name) VALUES (?) ON CONFLICT (name) DO NOTHING;

-- name: promote_due_jobs
UPDATE jobs SET state = 0 WHERE queue = ? AND state = 1 AND due <= ?;

-- name: requeue_expired_leases
UPDATE jobs SET state = 0, crashes = min(crashes, 1000000000) + 1, lease = NULL WHERE queue = ? AND state = 2 AND lease <= ?;

-- name: next_due
SELECT min(due) FROM jobs WHERE queue = ? AND state = 1;

-- name: next_lease_expiry
SELECT min(lease) FROM jobs WHERE queue = ? AND state = 2;

-- name: count_active
SELECT count(*) FROM jobs WHERE queue = ? AND state = 2;

-- name: waiting_jobs
SELECT j.pk, j.run, r.closed, r.paused, j.rate_key, r.version, r.record, j.id, j.name, j.payload, j.opts, j.scope,
       j.attempt, j.failures, j.crashes, j.started_stream, j.started_prefix, r.kind, j.unit
FROM jobs j LEFT JOIN runs r ON r.id = j.run WHERE j.queue = ? AND j.state = 0 ORDER BY j.priority, j.pk LIMIT ?;

-- name: waiting_jobs_of
SELECT j.pk, j.run, r.closed, r.paused, j.rate_key, r.version, r.record, j.id, j.name, j.payload, j.opts, j.scope,
       j.attempt, j.failures, j.crashes, j.started_stream, j.started_prefix, r.kind, j.unit
FROM jobs j LEFT JOIN runs r ON r.id = j.run
WHERE j.queue = ?1 AND j.state = 0 AND j.pk IN (
  SELECT o.pk FROM json_each(?2) AS x JOIN jobs o ON o.id > x.value || '.' AND o.id < x.value || '/' AND o.run = x.value
  UNION ALL SELECT o.pk FROM json_each(?3) AS x JOIN jobs o ON o.id = x.value)
ORDER BY j.priority, j.pk LIMIT ?4;

-- name: claim_job
UPDATE jobs SET state = 2, attempt = ?, token = ?, lease = ? WHERE pk = ?;

-- name: cancel_job
UPDATE jobs SET state = 6, finished = ? WHERE pk = ?;

-- name: delay_job
UPDATE jobs SET state = 1, due = ? WHERE pk = ?;

-- name: rate_window
SELECT until, used FROM rates WHERE queue = ? AND key = ?;

-- name: set_rate_window
INSERT INTO rates (queue, key, until, used) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue, key) DO UPDATE SET until = ?3, used = ?4;

-- name: renew_lease
UPDATE jobs SET lease = ? WHERE pk = ? AND state = 2 AND token = ? AND attempt = ?;

-- name: run_closed
SELECT closed FROM runs WHERE id = ?;
