-- Statements of reading, administration and housekeeping.

-- name: stream
SELECT sid, seq FROM streams WHERE name = ?;

-- name: read_forward
SELECT seq, ms, body FROM events WHERE sid = ? AND seq > ? AND seq < ? ORDER BY seq LIMIT ?;

-- name: read_backward
SELECT seq, ms, body FROM events WHERE sid = ? AND seq > ? AND seq < ? ORDER BY seq DESC LIMIT ?;

-- name: feed
SELECT e.pos, s.name, e.seq, e.ms, e.body FROM events e JOIN streams s ON s.sid = e.sid
WHERE e.pos > ? ORDER BY e.pos LIMIT ?;

-- name: changed_streams
SELECT DISTINCT s.name FROM events AS e JOIN streams AS s ON s.sid = e.sid WHERE e.pos > ?;

-- name: last_position
SELECT seq FROM streams WHERE name = '';

-- name: last_feed_item
SELECT e.pos, s.name, e.seq, e.ms, e.body FROM events e JOIN streams s ON s.sid = e.sid ORDER BY e.pos DESC LIMIT 1;

-- name: newest_streams
SELECT name, seq, ms FROM streams
WHERE substr(name, 1, instr(name, ':') + instr(substr(name, instr(name, ':') + 1), ':')) = ?1
  AND sid < coalesce((SELECT sid FROM streams WHERE name = ?2), CASE WHEN ?2 IS NULL THEN 0x4000000000000000 ELSE 0 END)
ORDER BY sid DESC LIMIT ?3;

-- name: stream_names
SELECT name FROM streams WHERE name >= ? AND name < ? ORDER BY name LIMIT ?;

-- name: oldest_event
SELECT seq, ms FROM events WHERE sid = ? ORDER BY seq LIMIT 1;

-- name: trim
-- Times never go back within a stream, so both limits remove its oldest events.
DELETE FROM events WHERE pos IN (
  SELECT pos FROM (SELECT pos, seq, ms FROM events WHERE sid = ?1 ORDER BY seq LIMIT ?4) WHERE seq <= ?2 OR ms < ?3);

-- name: run
SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM runs WHERE id = ?;

-- name: run_created
SELECT created FROM runs WHERE id = ?;

-- name: runs
SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM runs
WHERE created >= ? AND (created, id) < (?, ?) ORDER BY created DESC, id DESC LIMIT ?;

-- name: runs_of_flow
SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM runs INDEXED BY runs_by_flow
WHERE flow = ?1 AND created >= ?3 AND (created, id) < (?4, ?5)
  AND (?2 = '[]' OR status IN (SELECT value FROM json_each(?2))) ORDER BY created DESC, id DESC LIMIT ?6;

-- name: runs_with_status
SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM runs
WHERE status = ? AND created >= ? AND (created, id) < (?, ?) ORDER BY created DESC, id DESC LIMIT ?;

-- name: runs_by_keys
-- The first key is read in order from its index, the others are looked up for each run.
SELECT r.id, r.version, r.flow, r.status, r.closed, r.created, r.updated, r.record, r.kind, r.parent, r.root,
       r.depth, r.call
FROM run_keys AS k CROSS JOIN runs AS r ON r.id = k.run
WHERE k.key = ?1 AND k.created >= ?5 AND (k.created, k.run) < (?6, ?7)
  AND (?3 IS NULL OR r.flow = ?3) AND (?4 = '[]' OR r.status IN (SELECT value FROM json_each(?4)))
  AND NOT EXISTS (SELECT 1 FROM json_each(?2) AS o WHERE NOT EXISTS (
    SELECT 1 FROM run_keys AS x WHERE x.key = o.value AND x.created = k.created AND x.run = k.run))
ORDER BY k.created DESC, k.run DESC LIMIT ?8;

-- name: open_child
SELECT 1 FROM runs INDEXED BY runs_called WHERE call = ? AND call IS NOT NULL AND closed = 0 LIMIT 1;

-- name: first_event
SELECT e.body FROM streams s JOIN events e ON e.sid = s.sid AND e.seq = 1 WHERE s.name = ?;

-- name: stuck_runs
SELECT id FROM runs r WHERE closed = 0 AND kind <> 'entity'
  AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id > r.id || '.' AND j.id < r.id || '/' AND j.run = r.id AND j.state < 4)
  AND NOT EXISTS (SELECT 1 FROM waits w WHERE w.run = r.id AND w.state = 'pending')
ORDER BY created LIMIT ?;

-- name: queue_names
SELECT name, paused FROM queues ORDER BY name;

-- name: count_waiting
SELECT queue, count(*) FROM jobs WHERE state = 0 GROUP BY queue;

-- name: count_delayed
SELECT queue, count(*) FROM jobs WHERE state = 1 GROUP BY queue;

-- name: count_active
SELECT queue, count(*) FROM jobs WHERE state = 2 GROUP BY queue;

-- name: count_suspended
SELECT queue, count(*) FROM jobs WHERE state = 3 GROUP BY queue;

-- name: count_timed
SELECT j.queue, count(DISTINCT j.id) FROM waits w JOIN jobs j ON j.id = w.job
WHERE w.kind IN ('time', 'event', 'trigger', 'call') AND w.state = 'pending' AND j.state = 1 AND j.due = w.due
GROUP BY j.queue;

-- name: count_finished
SELECT queue, state, n FROM finished_counts WHERE n > 0;

-- name: job
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM children c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM jobs p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM jobs WHERE id = ?;

-- name: job_position
SELECT pk, priority, due, finished FROM jobs WHERE id = ?;

-- name: jobs_waiting
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM children c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM jobs p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM jobs
WHERE queue = ? AND state = 0 AND (priority, pk) > (?, ?) ORDER BY priority, pk LIMIT ?;

-- name: jobs_delayed
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM children c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM jobs p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM jobs
WHERE queue = ? AND state = 1 AND (due, pk) > (?, ?) ORDER BY due, pk LIMIT ?;

-- name: jobs_active
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM children c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM jobs p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM jobs
WHERE queue = ? AND state = 2 AND pk > ? ORDER BY pk LIMIT ?;

-- name: jobs_suspended
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM children c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM jobs p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM jobs
WHERE queue = ? AND state = 3 AND pk > ? ORDER BY pk LIMIT ?;

-- name: jobs_finished
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM children c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM jobs p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM jobs
WHERE pk IN (
  SELECT pk FROM (
    SELECT finished, pk FROM jobs WHERE queue = ?1 AND state = ?2 AND state >= 4 AND run IS NULL AND (finished, pk) > (?3, ?4)
    UNION ALL
    SELECT finished, pk FROM jobs WHERE queue = ?1 AND state = ?2 AND state >= 4 AND run IS NOT NULL AND (finished, pk) > (?3, ?4)
    ORDER BY finished, pk LIMIT ?5))
ORDER BY finished, pk;

-- name: set_paused
INSERT INTO queues (name, paused) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET paused = ?2;

-- name: promote
UPDATE jobs SET state = 0, due = 0 WHERE id = ? AND state = 1 RETURNING queue;

-- name: retry
UPDATE jobs SET state = 0, due = 0, failures = 0, crashes = 0, finished = NULL, error = NULL, unit = NULL
WHERE id = ? AND state IN (5, 6) AND run IS NULL RETURNING queue, order_key;

-- name: remove
DELETE FROM jobs WHERE id = ? AND state != 2 RETURNING queue, order_key, coalesce(scope, id), id;

-- name: drain
DELETE FROM jobs WHERE queue = ? AND state = 0 AND run IS NULL RETURNING coalesce(scope, id), id;

-- name: drain_ordered
DELETE FROM jobs WHERE queue = ? AND state = -1 AND order_key IS NOT NULL RETURNING coalesce(scope, id), id;

-- name: drain_delayed
DELETE FROM jobs WHERE queue = ? AND state = 1 AND run IS NULL RETURNING coalesce(scope, id), id;

-- name: add_schedule
INSERT INTO schedules (id, spec, target, next, last, paused, fired) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING RETURNING id;

-- name: change_schedule
UPDATE schedules SET spec = ?, target = ?, next = ?, last = ?, paused = ?, fired = ?
WHERE id = ? AND spec = ? AND target = ? AND next IS ? AND last IS ? AND paused = ? AND fired = ? RETURNING id;

-- name: remove_schedule
DELETE FROM schedules WHERE id = ? RETURNING id;

-- name: remove_unchanged_schedule
DELETE FROM schedules WHERE id = ? AND spec = ? AND target = ? RETURNING id;

-- name: schedule
SELECT id, spec, target, next, last, paused, fired FROM schedules WHERE id = ?;

-- name: schedules
SELECT id, spec, target, next, last, paused, fired FROM schedules ORDER BY id;

-- name: due_schedules
SELECT id, spec, target, next, last, paused, fired FROM schedules
WHERE next IS NOT NULL AND paused = 0 AND next <= ? AND (next, id) > (?, ?) ORDER BY next, id LIMIT ?;

-- name: next_schedule
SELECT min(next) FROM schedules WHERE next IS NOT NULL AND paused = 0 AND next > ?;

-- name: state
SELECT key, value, version, expires FROM states WHERE key = ? AND (expires IS NULL OR expires > ?);

-- name: states
SELECT key, value, version, expires FROM states
WHERE key > ? AND key >= ? AND key < ? AND (expires IS NULL OR expires > ?) ORDER BY key LIMIT ?;

-- name: last_surplus_run
SELECT updated, id FROM runs INDEXED BY runs_closed WHERE closed = 1 ORDER BY updated DESC, id DESC LIMIT 1 OFFSET ?;

-- name: old_runs
SELECT id, kind FROM runs INDEXED BY runs_closed WHERE closed = 1 AND (updated, id) <= (?1, ?2) AND id NOT IN (
  SELECT run FROM jobs INDEXED BY jobs_active WHERE state = 2 AND lease > ?3 AND run IS NOT NULL)
  AND NOT (call IS NOT NULL AND EXISTS (SELECT 1 FROM runs p WHERE p.id = runs.parent))
ORDER BY updated, id LIMIT ?4;

-- name: delete_run
DELETE FROM runs WHERE id = ?;

-- name: delete_run_keys
DELETE FROM run_keys WHERE run = ?;

-- name: run_jobs
SELECT pk, coalesce(scope, id) FROM jobs WHERE id > ? AND id < ? AND run = ? LIMIT ?;

-- name: delete_job
DELETE FROM jobs WHERE pk = ?;

-- name: delete_memos
DELETE FROM memos WHERE scope = ?;

-- name: run_triggers
SELECT id FROM waits WHERE run = ? AND kind = 'trigger';

-- name: delete_run_waits
DELETE FROM waits WHERE run = ?;

-- name: delete_run_state
DELETE FROM states WHERE key IN (SELECT key FROM states WHERE key >= ? AND key < ? LIMIT ?);

-- name: delete_events
DELETE FROM events WHERE pos IN (
  SELECT e.pos FROM streams s JOIN events e ON e.sid = s.sid WHERE s.name = ? ORDER BY e.seq LIMIT ?);

-- name: delete_stream
DELETE FROM streams WHERE name = ?;

-- name: last_surplus_job
SELECT finished, pk FROM (
  SELECT finished, pk FROM jobs INDEXED BY jobs_finished WHERE queue = ?1 AND state = 4 AND state >= 4 AND run IS NULL
  UNION ALL
  SELECT finished, pk FROM jobs INDEXED BY jobs_finished WHERE queue = ?1 AND state = 5 AND state >= 4 AND run IS NULL
  UNION ALL
  SELECT finished, pk FROM jobs INDEXED BY jobs_finished WHERE queue = ?1 AND state = 6 AND state >= 4 AND run IS NULL
  ORDER BY finished DESC, pk DESC LIMIT 1 OFFSET ?2);

-- name: delete_old_jobs
DELETE FROM jobs WHERE pk IN (
  SELECT pk FROM jobs INDEXED BY jobs_finished
  WHERE queue = ? AND state IN (4, 5, 6) AND state >= 4 AND run IS NULL AND (finished, pk) <= (?, ?) LIMIT ?)
RETURNING coalesce(scope, id), id;

-- name: expire_damaged_leases
UPDATE jobs SET lease = ?2 WHERE queue = ?1 AND state = 2 AND (lease IS NULL OR lease > ?3);

-- name: date_finished_jobs
UPDATE jobs SET finished = 0 WHERE queue = ? AND state IN (4, 5, 6) AND state >= 4 AND run IS NULL AND finished IS NULL;

-- name: delete_job_memos
DELETE FROM memos WHERE scope IN (SELECT value FROM json_each(?)) AND NOT EXISTS (
  SELECT 1 FROM jobs WHERE id = memos.scope OR (id > memos.scope || '.' AND id < memos.scope || '/'));

-- name: delete_dedupe_keys_without_ttl
DELETE FROM dedupes WHERE job IN (SELECT value FROM json_each(?)) AND until IS NULL;

-- name: delete_dedupe_keys
DELETE FROM dedupes WHERE job IN (SELECT value FROM json_each(?));

-- name: delete_expired_dedupe_keys
DELETE FROM dedupes WHERE (queue, key) IN (
  SELECT queue, key FROM dedupes INDEXED BY dedupes_expiring WHERE until IS NOT NULL AND until <= ? LIMIT ?);

-- name: delete_expired_rates
DELETE FROM rates WHERE (queue, key) IN (SELECT queue, key FROM rates INDEXED BY rates_by_end WHERE until <= ? LIMIT ?);

-- name: delete_expired_holds
DELETE FROM holds WHERE queue IN (SELECT queue FROM holds WHERE until <= ? LIMIT ?);

-- name: delete_expired_state
DELETE FROM states WHERE key IN (SELECT key FROM states WHERE expires IS NOT NULL AND expires <= ? LIMIT ?);

-- name: delete_old_once_keys
DELETE FROM once WHERE key IN (SELECT key FROM once WHERE at < ? LIMIT ?);

-- name: delete_old_units
DELETE FROM units WHERE id IN (SELECT id FROM units WHERE at < ? LIMIT ?);

-- name: memos
SELECT name, value FROM memos WHERE scope = ?;

-- name: wait
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, pos FROM waits WHERE id = ?;

-- name: waits_by_time
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, pos FROM waits INDEXED BY waits_by_time
WHERE (state = 'pending' OR kind = 'trigger') AND kind = ?1 AND state = ?2 AND created >= ?3 AND created < ?4
  AND (?5 IS NULL OR (created, id) < ((SELECT b.created FROM waits b WHERE b.id = ?5), ?5))
ORDER BY created DESC, id DESC LIMIT ?6;

-- name: waits_of_run_by_time
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, pos FROM waits INDEXED BY waits_by_run
WHERE run = ?1 AND state = ?2 AND (?3 IS NULL OR kind = ?3) AND created >= ?4 AND created < ?5
  AND (?6 IS NULL OR (created, id) < ((SELECT b.created FROM waits b WHERE b.id = ?6), ?6))
ORDER BY created DESC, id DESC LIMIT ?7;

-- name: pending_waits_of_run
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, pos FROM waits INDEXED BY waits_by_run
WHERE run = ?1 AND state = 'pending' AND (?2 IS NULL OR kind = ?2) AND id > ?3 ORDER BY id LIMIT ?4;

-- name: waits_for_topic_and_key
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, pos FROM waits INDEXED BY waits_by_topic
WHERE state = 'pending' AND topic = ?1 AND topic IS NOT NULL AND key = ?2 AND id > ?3
  AND pos < ?5
ORDER BY id LIMIT ?4;

-- name: waits_for_topic_and_any_key
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, pos FROM waits INDEXED BY waits_by_topic
WHERE state = 'pending' AND topic = ?1 AND topic IS NOT NULL AND id > ?2 AND pos < ?4 ORDER BY id LIMIT ?3;

-- name: events_by_kind
SELECT e.pos, s.name, e.seq, e.ms, coalesce(e.original, e.body) FROM events e INDEXED BY events_by_kind JOIN streams s ON s.sid = e.sid
WHERE e.kind = ?1 AND e.kind IS NOT NULL AND e.pos > max(?2, coalesce((
  SELECT b.pos FROM streams t JOIN events b ON b.sid = t.sid WHERE t.name = ?3 ORDER BY b.seq LIMIT 1), 0))
ORDER BY e.pos LIMIT ?4;

-- name: count_held
SELECT queue, count(*) FROM jobs WHERE state = -1 GROUP BY queue;

-- name: jobs_held
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM children c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM jobs p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM jobs
WHERE queue = ? AND state = -1 AND pk > ? ORDER BY pk LIMIT ?;

-- name: count_waiting_children
SELECT queue, count(*) FROM jobs WHERE state = -2 GROUP BY queue;

-- name: jobs_waiting_children
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM children c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM jobs p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM jobs
WHERE queue = ? AND state = -2 AND pk > ? ORDER BY pk LIMIT ?;

-- name: namespace
SELECT value FROM store_info WHERE name = 'namespace';

-- name: set_namespace
INSERT INTO store_info (name, value) VALUES ('namespace', ?) ON CONFLICT (name) DO NOTHING;

-- name: report_worker
INSERT INTO workers (id, facts, seen, expires) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET facts = ?2, seen = ?3, expires = ?4;

-- name: remove_worker
DELETE FROM workers WHERE id = ?;

-- name: live_workers
SELECT id, facts, seen, expires FROM workers WHERE expires > ? ORDER BY id;

-- name: delete_expired_workers
DELETE FROM workers WHERE id IN (SELECT id FROM workers WHERE expires <= ? LIMIT ?);

-- name: add_counts
INSERT INTO queue_minutes (queue, minute, added, completed, failed, retried) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (queue, minute) DO UPDATE SET
  added = added + ?3, completed = completed + ?4, failed = failed + ?5, retried = retried + ?6;

-- name: rates
SELECT queue, minute, added, completed, failed, retried FROM queue_minutes INDEXED BY queue_minutes_by_time
WHERE minute >= ? ORDER BY minute, queue;

-- name: rates_of_queue
SELECT queue, minute, added, completed, failed, retried FROM queue_minutes WHERE queue = ? AND minute >= ? ORDER BY minute;

-- name: delete_old_counts
DELETE FROM queue_minutes WHERE (queue, minute) IN (
  SELECT queue, minute FROM queue_minutes INDEXED BY queue_minutes_by_time WHERE minute < ? LIMIT ?);

-- name: oldest_waiting
-- The first job of each priority, found in the index; more than a hundred priorities of one queue are not looked at.
WITH RECURSIVE heads (queue, priority, n) AS (
  SELECT q.name, (SELECT min(priority) FROM jobs WHERE queue = q.name AND state = 0), 1 FROM queues q
  UNION ALL
  SELECT h.queue, (SELECT min(priority) FROM jobs WHERE queue = h.queue AND state = 0 AND priority > h.priority), h.n + 1
  FROM heads h WHERE h.priority IS NOT NULL AND h.n < 100)
SELECT queue, min(since) FROM (
  SELECT h.queue, (SELECT max(j.created, j.due) FROM jobs j
                   WHERE j.queue = h.queue AND j.state = 0 AND j.priority = h.priority ORDER BY j.pk LIMIT 1) AS since
  FROM heads h WHERE h.priority IS NOT NULL
  UNION ALL
  SELECT q.name, (SELECT min(due) FROM jobs WHERE queue = q.name AND state = 1 AND due <= ?1) FROM queues q)
WHERE since IS NOT NULL GROUP BY queue;

-- name: open_keys
-- The first ?2 jobs of each state, by the index of that state.
SELECT key, state, count(*) FROM (
  SELECT * FROM (SELECT coalesce(order_key, rate_key) AS key, 'waiting' AS state FROM jobs INDEXED BY jobs_waiting
                 WHERE queue = ?1 AND state = 0 ORDER BY priority, pk LIMIT ?2)
  UNION ALL
  SELECT * FROM (SELECT coalesce(order_key, rate_key), 'held' FROM jobs INDEXED BY jobs_held
                 WHERE queue = ?1 AND state = -1 ORDER BY pk LIMIT ?2)
  UNION ALL
  SELECT * FROM (SELECT coalesce(order_key, rate_key), 'delayed' FROM jobs INDEXED BY jobs_delayed
                 WHERE queue = ?1 AND state = 1 ORDER BY due, pk LIMIT ?2)
  UNION ALL
  SELECT * FROM (SELECT coalesce(order_key, rate_key), 'active' FROM jobs INDEXED BY jobs_active
                 WHERE queue = ?1 AND state = 2 ORDER BY lease LIMIT ?2))
WHERE key IS NOT NULL GROUP BY key, state ORDER BY key, state;

-- name: reset_rates
DELETE FROM rates WHERE queue = ?;

-- name: error_groups
SELECT g.error_group, g.n, g.first, g.last, j.id FROM (
  SELECT error_group, count(*) AS n, min(created) AS first, max(created) AS last, max(pk) AS pk
  FROM jobs INDEXED BY jobs_by_error WHERE queue = ? AND state = 0 AND error_group IS NOT NULL GROUP BY error_group) g
JOIN jobs j ON j.pk = g.pk ORDER BY g.n DESC, g.error_group;

-- name: jobs_of_error_group
SELECT id FROM jobs INDEXED BY jobs_by_error
WHERE queue = ?1 AND state = 0 AND error_group = ?2 AND error_group IS NOT NULL
  AND pk > coalesce((SELECT pk FROM jobs WHERE id = ?3), 0) ORDER BY pk LIMIT ?4;

-- name: uncount_retried
UPDATE finished_counts SET n = n - 1
WHERE (queue, state) = (SELECT j.queue, j.state FROM jobs j WHERE j.id = ? AND j.state IN (5, 6) AND j.run IS NULL);
