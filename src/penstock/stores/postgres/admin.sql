-- Reads and administration. Commits are in the folder functions.

-- name: commit_units
SELECT * FROM penstock.commit_units($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: finish_jobs
SELECT * FROM penstock.finish_jobs(
  $1, string_to_array($2, ',')::bigint[], string_to_array($3, E'\x1f'), string_to_array($4, ',')::integer[],
  string_to_array($5, E'\x1f'), string_to_array($6, E'\x1f', '-')::json[], string_to_array($7, ',')::integer[],
  string_to_array($8, E'\x1f'), string_to_array($9, E'\x1f')::json[], $10);

-- name: renew_leases
SELECT penstock.renew_leases($1, $2, $3, $4, $5);

-- name: started_events
SELECT pk, id, started_prefix FROM penstock.jobs
WHERE queue = ANY ($1) AND state IN (0, 1, 2) AND started_stream IS NOT NULL AND pk > $2 ORDER BY pk LIMIT $3;

-- name: clear_started_events
UPDATE penstock.jobs SET started_stream = NULL, started_prefix = NULL WHERE pk = ANY ($1);

-- name: now_ms
SELECT penstock.now_ms(NULL);

-- name: stream
SELECT sid, seq FROM penstock.streams WHERE name = $1;

-- name: read_forward
SELECT e.seq, e.ms, e.body FROM penstock.events AS e
WHERE e.sid = (SELECT sid FROM penstock.streams WHERE name = $1) AND e.seq > $2 AND e.seq < $3 ORDER BY e.seq LIMIT $4;

-- name: read_backward
SELECT e.seq, e.ms, e.body FROM penstock.events AS e
WHERE e.sid = (SELECT sid FROM penstock.streams WHERE name = $1) AND e.seq > $2 AND e.seq < $3 ORDER BY e.seq DESC LIMIT $4;

-- name: feed
-- Only below the oldest open transaction: an event that is committed late has a stamp above it.
SELECT e.stamp, e.n, s.name, e.seq, e.ms, e.body FROM (
  SELECT * FROM penstock.events
  WHERE (stamp, n) > ($1, $2) AND stamp < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
  ORDER BY stamp, n LIMIT $3) AS e
JOIN penstock.streams AS s ON s.sid = e.sid ORDER BY e.stamp, e.n;

-- name: feed_end
SELECT e.stamp, e.n, s.name, e.seq, e.ms, e.body FROM (
  SELECT * FROM penstock.events WHERE stamp < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
  ORDER BY stamp DESC, n DESC LIMIT 1) AS e
JOIN penstock.streams AS s ON s.sid = e.sid;

-- name: newest_streams
SELECT name, seq, ms FROM penstock.streams
WHERE (split_part(name, ':', 1) || ':' || split_part(name, ':', 2) || ':') COLLATE "C" = $1
  AND sid < coalesce((SELECT sid FROM penstock.streams WHERE name = $2), CASE WHEN $2::text IS NULL THEN 4611686018427387904 ELSE 0 END)
ORDER BY sid DESC LIMIT $3;

-- name: stream_names
SELECT name FROM penstock.streams WHERE name > $1 AND name >= $2 AND name < $3 ORDER BY name LIMIT $4;

-- name: trim
-- Times never go back within a stream, so both limits remove its oldest events. The first one is read alone: mostly it stays.
DELETE FROM penstock.events WHERE sid = $1 AND seq <= (
  SELECT max(f.seq) FROM (SELECT seq, ms FROM penstock.events WHERE sid = $1 ORDER BY seq LIMIT $4) AS f
  WHERE f.seq <= $2 OR f.ms < $3)
  AND (SELECT o.seq <= $2 OR o.ms < $3 FROM penstock.events AS o WHERE o.sid = $1 ORDER BY o.seq LIMIT 1);

-- name: run
SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM penstock.runs WHERE id = $1;

-- name: run_created
SELECT created FROM penstock.runs WHERE id = $1;

-- name: runs
SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM penstock.runs
WHERE created >= $1 AND (created, id) < ($2, $3) ORDER BY created DESC, id DESC LIMIT $4;

-- name: runs_of_flow
SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM penstock.runs
WHERE flow = $1 AND created >= $2 AND (created, id) < ($3, $4) ORDER BY created DESC, id DESC LIMIT $5;

-- name: runs_with_status
-- The newest of each status are read in order from the index.
SELECT r.* FROM unnest($1::text[]) AS wanted (status)
CROSS JOIN LATERAL (
  SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM penstock.runs
  WHERE status = wanted.status AND created >= $2 AND (created, id) < ($3, $4) ORDER BY created DESC, id DESC LIMIT $5) AS r
ORDER BY r.created DESC, r.id DESC LIMIT $5;

-- name: runs_of_flow_with_status
SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM penstock.runs
WHERE flow = $1 AND status = ANY ($2::text[]) AND created >= $3 AND (created, id) < ($4, $5) ORDER BY created DESC, id DESC LIMIT $6;

-- name: runs_by_keys
-- The first key is read in order from its index, the others are looked up for each run. OFFSET 0 keeps the planner to this order.
SELECT r.* FROM (
  SELECT created, run FROM penstock.run_keys WHERE key = $1 AND created >= $5 AND (created, run) < ($6, $7)
  ORDER BY created DESC, run DESC OFFSET 0) AS k
CROSS JOIN LATERAL (
  SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM penstock.runs
  WHERE id = k.run OFFSET 0) AS r
WHERE ($3::text IS NULL OR r.flow = $3) AND ($4::text[] = '{}' OR r.status = ANY ($4))
  AND NOT EXISTS (SELECT 1 FROM unnest($2::text[]) AS o (key) WHERE NOT EXISTS (
    SELECT 1 FROM penstock.run_keys AS x WHERE x.key = o.key AND x.created = k.created AND x.run = k.run))
ORDER BY k.created DESC, k.run DESC LIMIT $8;

-- name: open_child
SELECT EXISTS (SELECT 1 FROM penstock.runs WHERE call = $1 AND NOT closed);

-- name: count_first_events
SELECT count(*) FROM (
  SELECT 1 FROM penstock.events WHERE seq = 1 AND penstock.searchable(body) @> penstock.searchable($1::json) LIMIT $2) AS e;

-- name: runs_by_first_event
-- OFFSET 0 keeps the planner to this order: the index of first events, their streams, their runs.
WITH e AS MATERIALIZED (
  SELECT sid, body FROM penstock.events WHERE seq = 1 AND penstock.searchable(body) @> penstock.searchable($1::json))
SELECT r.*, e.body FROM e
CROSS JOIN LATERAL (SELECT name FROM penstock.streams WHERE sid = e.sid OFFSET 0) AS s
CROSS JOIN LATERAL (
  SELECT id, version, flow, status, closed, created, updated, record, kind, parent, root, depth, call FROM penstock.runs
  WHERE id = split_part(substr(s.name, length($2::text) + 1), ':', 2) OFFSET 0) AS r
WHERE s.name = $2 || r.kind || ':' || r.id AND ($3::text IS NULL OR r.flow = $3) AND ($4::text[] = '{}' OR r.status = ANY ($4))
  AND r.created >= $5 AND (r.created, r.id) < ($6, $7)
ORDER BY r.created DESC, r.id DESC LIMIT $8;

-- name: first_events
SELECT g.n, e.body FROM unnest($1::text[]) WITH ORDINALITY AS g (name, n)
CROSS JOIN LATERAL (SELECT sid FROM penstock.streams WHERE name = g.name OFFSET 0) AS s
CROSS JOIN LATERAL (SELECT body FROM penstock.events WHERE sid = s.sid AND seq = 1 OFFSET 0) AS e;

-- name: stuck_runs
SELECT r.id FROM penstock.runs AS r WHERE NOT r.closed AND r.kind <> 'entity'
  AND NOT EXISTS (SELECT 1 FROM penstock.jobs AS j
                  WHERE j.id > r.id || '.' AND j.id < r.id || '/' AND j.run = r.id AND j.state < 4)
  AND NOT EXISTS (SELECT 1 FROM penstock.waits AS w WHERE w.run = r.id AND w.state = 'pending')
ORDER BY r.created LIMIT $1;

-- name: queues
SELECT * FROM penstock.count_queues();

-- name: count_timed
SELECT j.queue, count(DISTINCT j.id) FROM penstock.waits AS w JOIN penstock.jobs AS j ON j.id = w.job
WHERE w.kind IN ('time', 'event', 'trigger', 'call') AND w.state = 'pending' AND j.state = 1 AND j.due = w.due
GROUP BY j.queue;

-- name: merge_finished_counts
-- No more rows than these are read: a sweep calls this for each of its batches.
WITH gone AS (
  DELETE FROM penstock.finished_counts WHERE ctid = ANY (ARRAY(SELECT ctid FROM penstock.finished_counts LIMIT $1))
    AND (SELECT count(*) FROM (SELECT 1 FROM penstock.finished_counts LIMIT 1001) AS f) > 1000
  RETURNING queue, state, n)
INSERT INTO penstock.finished_counts (queue, state, n)
SELECT queue, state, sum(n) FROM gone GROUP BY queue, state HAVING sum(n) <> 0;

-- name: job
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM penstock.children AS c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM penstock.jobs AS p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM penstock.jobs WHERE id = $1;

-- name: job_position
SELECT pk, priority, due, finished FROM penstock.jobs WHERE id = $1;

-- name: jobs_waiting
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM penstock.children AS c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM penstock.jobs AS p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM penstock.jobs
WHERE queue = $1 AND state = 0 AND (priority, pk) > ($2, $3) ORDER BY priority, pk LIMIT $4;

-- name: jobs_delayed
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM penstock.children AS c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM penstock.jobs AS p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM penstock.jobs
WHERE queue = $1 AND state = 1 AND (due, pk) > ($2, $3) ORDER BY due, pk LIMIT $4;

-- name: jobs_active
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM penstock.children AS c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM penstock.jobs AS p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM penstock.jobs
WHERE queue = $1 AND state = 2 AND pk > $2 ORDER BY pk LIMIT $3;

-- name: jobs_held_or_suspended
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM penstock.children AS c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM penstock.jobs AS p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM penstock.jobs
WHERE queue = $1 AND state = $2 AND state IN (-1, 3) AND pk > $3 ORDER BY pk LIMIT $4;

-- name: jobs_waiting_children
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM penstock.children AS c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM penstock.jobs AS p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM penstock.jobs
WHERE queue = $1 AND state = -2 AND pk > $2 ORDER BY pk LIMIT $3;

-- name: jobs_finished
SELECT id, queue, name, state, payload, opts, priority, due, attempt, failures, crashes, run, scope, created, finished,
       progress, result, error, lease,
       (SELECT c.parent FROM penstock.children AS c WHERE c.child = jobs.id LIMIT 1), order_key,
       CASE WHEN state = -1 AND order_key IS NOT NULL THEN (
         SELECT p.id FROM penstock.jobs AS p WHERE p.queue = jobs.queue AND p.order_key = jobs.order_key AND p.state < 4
           AND p.pk < jobs.pk ORDER BY p.pk DESC LIMIT 1) END FROM penstock.jobs
WHERE pk IN (
  SELECT f.pk FROM (
    (SELECT finished, pk FROM penstock.jobs
     WHERE queue = $1 AND state = $2 AND state >= 4 AND run IS NULL AND (finished, pk) > ($3, $4)
     ORDER BY finished, pk LIMIT $5)
    UNION ALL
    (SELECT finished, pk FROM penstock.jobs
     WHERE queue = $1 AND state = $2 AND state >= 4 AND run IS NOT NULL AND (finished, pk) > ($3, $4)
     ORDER BY finished, pk LIMIT $5)
    ORDER BY finished, pk LIMIT $5) AS f)
ORDER BY finished, pk;

-- name: set_paused
INSERT INTO penstock.queues (name, paused) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET paused = $2;

-- name: promote
UPDATE penstock.jobs SET state = 0, due = 0 WHERE id = $1 AND state = 1 RETURNING queue;

-- name: retry
WITH found AS (
  SELECT id, state FROM penstock.jobs WHERE id = $1 AND state IN (5, 6) AND run IS NULL FOR UPDATE),
moved AS (
  UPDATE penstock.jobs AS j SET state = CASE WHEN j.order_key IS NULL THEN 0 ELSE -1 END,
    pk = CASE WHEN j.order_key IS NULL THEN j.pk ELSE nextval('penstock.jobs_pk') END,
    due = 0, failures = 0, crashes = 0, finished = NULL, error = NULL, unit = NULL
  FROM found WHERE j.id = found.id RETURNING j.queue, found.state),
counted AS (INSERT INTO penstock.finished_counts (queue, state, n) SELECT m.queue, m.state, -1 FROM moved AS m),
freed AS (DELETE FROM penstock.dedupe_keys WHERE job = $1 AND until IS NULL)
SELECT queue FROM moved;

-- name: remove
WITH gone AS (DELETE FROM penstock.jobs WHERE id = $1 AND state <> 2 RETURNING id, queue, coalesce(scope, id) AS scope),
freed AS (DELETE FROM penstock.dedupe_keys AS d USING gone WHERE d.job = gone.id)
SELECT queue, scope, id FROM gone;

-- name: drain
WITH gone AS (
  DELETE FROM penstock.jobs WHERE queue = $1 AND run IS NULL AND (
    state = 0 OR ($2 AND state = 1) OR (state = -1 AND order_key IS NOT NULL))
  RETURNING id, coalesce(scope, id) AS scope),
freed AS (DELETE FROM penstock.dedupe_keys AS d USING gone WHERE d.job = gone.id)
SELECT scope, id FROM gone;

-- name: order_of_job
SELECT queue, order_key FROM penstock.jobs WHERE id = $1 AND order_key IS NOT NULL;

-- name: lock_order_key
SELECT penstock.lock_order_keys(ARRAY[(NULL, $1::text, $2::text)::penstock.order_ref]);

-- name: lock_order_queue
SELECT penstock.lock_order_queue($1);

-- name: release_order_head
SELECT penstock.release_order_heads(penstock.now_ms($1), ARRAY[(NULL, $2::text, $3::text)::penstock.order_ref]);

-- name: forget_scopes
SELECT penstock.forget_scopes($1);

-- name: children
SELECT queue, child, state, value, reason FROM penstock.children WHERE parent = $1;

-- name: drop_children
SELECT penstock.drop_children($1, $2);

-- name: reset_child
UPDATE penstock.children SET state = 0, value = NULL, reason = NULL WHERE child = $1 AND state IN (2, 3);

-- name: wait_for_children
UPDATE penstock.jobs SET state = -2 WHERE id = $1 AND state = 0 AND EXISTS (
  SELECT 1 FROM penstock.children WHERE parent = $1 AND state = 0);

-- name: add_schedule
INSERT INTO penstock.schedules (id, spec, target, next, last, paused, fired) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO NOTHING RETURNING id;

-- name: change_schedule
UPDATE penstock.schedules SET spec = $2, target = $3, next = $4, last = $5, paused = $6, fired = $7
WHERE id = $1 AND spec = $8 AND target = $9 AND next IS NOT DISTINCT FROM $10 AND last IS NOT DISTINCT FROM $11
  AND paused = $12 AND fired = $13 RETURNING id;

-- name: remove_schedule
DELETE FROM penstock.schedules WHERE id = $1 RETURNING id;

-- name: remove_unchanged_schedule
DELETE FROM penstock.schedules WHERE id = $1 AND spec = $2 AND target = $3 RETURNING id;

-- name: schedule
SELECT id, spec, target, next, last, paused, fired FROM penstock.schedules WHERE id = $1;

-- name: schedules
SELECT id, spec, target, next, last, paused, fired FROM penstock.schedules ORDER BY id;

-- name: due_schedules
SELECT id, spec, target, next, last, paused, fired FROM penstock.schedules
WHERE next IS NOT NULL AND NOT paused AND next <= $1 AND (next, id) > ($2, $3) ORDER BY next, id LIMIT $4;

-- name: next_schedule
SELECT min(next) FROM penstock.schedules WHERE next IS NOT NULL AND NOT paused AND next > $1;

-- name: wait
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, stamp FROM penstock.waits WHERE id = $1;

-- name: memos
SELECT name, value FROM penstock.memos WHERE scope = $1;

-- name: waits_by_time
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, stamp FROM penstock.waits
WHERE (state = 'pending' OR kind = 'trigger') AND kind = $1 AND state = $2 AND created >= $3 AND created < $4
  AND ($5::text IS NULL OR (created, id) < ((SELECT b.created FROM penstock.waits AS b WHERE b.id = $5), $5))
ORDER BY created DESC, id DESC LIMIT $6;

-- name: waits_of_run_by_time
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, stamp FROM penstock.waits
WHERE run = $1 AND state = $2 AND ($3::text IS NULL OR kind = $3) AND created >= $4 AND created < $5
  AND ($6::text IS NULL OR (created, id) < ((SELECT b.created FROM penstock.waits AS b WHERE b.id = $6), $6))
ORDER BY created DESC, id DESC LIMIT $7;

-- name: pending_waits_of_run
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, stamp FROM penstock.waits
WHERE run = $1 AND state = 'pending' AND ($2::text IS NULL OR kind = $2) AND id > $3 ORDER BY id LIMIT $4;

-- name: waits_for_topic_and_keys
-- A page of each key, in the order of the index: with `key = ANY`, each page would read all waits of the topic.
SELECT w.* FROM unnest($2::text[]) AS k (key), LATERAL (
  SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, stamp FROM penstock.waits AS x
  WHERE x.state = 'pending' AND x.topic = $1 AND x.topic IS NOT NULL AND x.key = k.key AND x.id > $3 AND x.stamp < $5
  ORDER BY x.id LIMIT $4) AS w
ORDER BY w.id LIMIT $4;

-- name: waits_for_topic
SELECT id, run, scope, kind, state, body, due, job, topic, key, created, settled, stamp FROM penstock.waits
WHERE state = 'pending' AND topic = $1 AND topic IS NOT NULL AND id > $2 AND stamp < $4
ORDER BY id LIMIT $3;

-- name: events_by_kind
-- Also above the oldest open transaction: an event that was committed before a wait was created is visible when the wait looks
-- back, and a later one is delivered to it.
SELECT e.stamp, e.n, s.name, e.seq, e.ms, coalesce(e.original, e.body)
FROM penstock.events AS e JOIN penstock.streams AS s ON s.sid = e.sid
WHERE e.kind = $1 AND e.kind IS NOT NULL AND (e.stamp, e.n) > ($2, $3) AND (e.stamp, e.n) > (
  SELECT coalesce(max(f.stamp), 0), coalesce(max(f.n), 0) FROM (
    SELECT b.stamp, b.n FROM penstock.streams AS t JOIN penstock.events AS b ON b.sid = t.sid
    WHERE t.name = $4 ORDER BY b.seq LIMIT 1) AS f)
ORDER BY e.stamp, e.n LIMIT $5;

-- name: state
SELECT key, value, version, expires FROM penstock.states WHERE key = $1 AND (expires IS NULL OR expires > penstock.now_ms($2));

-- name: states
SELECT key, value, version, expires FROM penstock.states
WHERE key > $1 AND key >= $2 AND key < $3 AND (expires IS NULL OR expires > (SELECT penstock.now_ms($4)))
ORDER BY key LIMIT $5;

-- name: last_surplus_run
SELECT ended, id FROM penstock.runs WHERE ended IS NOT NULL ORDER BY ended DESC, id DESC LIMIT 1 OFFSET $1;

-- name: old_runs
SELECT r.id FROM penstock.runs AS r WHERE r.ended IS NOT NULL AND (r.ended, r.id) <= ($1, $2) AND r.id NOT IN (
  SELECT j.run FROM penstock.jobs AS j WHERE j.state = 2 AND j.lease > $3 AND j.run IS NOT NULL)
  AND NOT (r.call IS NOT NULL AND EXISTS (SELECT 1 FROM penstock.runs AS p WHERE p.id = r.parent))
ORDER BY r.ended, r.id LIMIT $4 FOR UPDATE OF r SKIP LOCKED;

-- name: run_kinds
SELECT id, kind FROM penstock.runs WHERE id = ANY ($1);

-- name: forget_runs
DELETE FROM penstock.runs WHERE id = ANY ($1);

-- name: run_jobs
SELECT j.pk, coalesce(j.scope, j.id) FROM unnest($1::text[]) AS g (run)
CROSS JOIN LATERAL (SELECT pk, scope, id FROM penstock.jobs
                    WHERE id > g.run || '.' AND id < g.run || '/' AND run = g.run LIMIT $2) AS j LIMIT $2;

-- name: forget_jobs
DELETE FROM penstock.jobs WHERE pk = ANY ($1);

-- name: forget_memos
DELETE FROM penstock.memos WHERE scope = ANY ($1);

-- name: run_triggers
SELECT id FROM penstock.waits WHERE run = ANY ($1) AND kind = 'trigger';

-- name: forget_run_keys
DELETE FROM penstock.run_keys WHERE run = ANY ($1);

-- name: forget_run_waits
DELETE FROM penstock.waits WHERE run = ANY ($1);

-- name: forget_run_states
DELETE FROM penstock.states WHERE key = ANY (ARRAY(
  SELECT s.key FROM unnest($1::text[]) AS g (run) JOIN penstock.states AS s
    ON s.key >= 'run/' || g.run || '/' AND s.key < 'run/' || g.run || '0' LIMIT $2));

-- name: forget_events
DELETE FROM penstock.events WHERE (sid, seq) IN (
  SELECT e.sid, e.seq FROM penstock.streams AS s
  CROSS JOIN LATERAL (SELECT sid, seq FROM penstock.events WHERE sid = s.sid ORDER BY seq LIMIT $2) AS e
  WHERE s.name = ANY ($1) LIMIT $2);

-- name: forget_streams
DELETE FROM penstock.streams WHERE name = ANY ($1);

-- name: queue_names
SELECT name FROM penstock.queues ORDER BY name;

-- name: last_surplus_job
SELECT finished, pk FROM (
  (SELECT finished, pk FROM penstock.jobs WHERE queue = $1 AND state = 4 AND run IS NULL ORDER BY finished DESC, pk DESC)
  UNION ALL
  (SELECT finished, pk FROM penstock.jobs WHERE queue = $1 AND state = 5 AND run IS NULL ORDER BY finished DESC, pk DESC)
  UNION ALL
  (SELECT finished, pk FROM penstock.jobs WHERE queue = $1 AND state = 6 AND run IS NULL ORDER BY finished DESC, pk DESC)
) AS f
ORDER BY finished DESC, pk DESC LIMIT 1 OFFSET $2;

-- name: old_jobs
DELETE FROM penstock.jobs WHERE pk IN (
  SELECT pk FROM penstock.jobs
  WHERE state >= 4 AND run IS NULL AND pk = ANY (ARRAY(
    SELECT pk FROM (
      (SELECT finished, pk FROM penstock.jobs
       WHERE queue = $1 AND state = 4 AND run IS NULL AND (finished, pk) <= ($2, $3) ORDER BY finished, pk LIMIT $4)
      UNION ALL
      (SELECT finished, pk FROM penstock.jobs
       WHERE queue = $1 AND state = 5 AND run IS NULL AND (finished, pk) <= ($2, $3) ORDER BY finished, pk LIMIT $4)
      UNION ALL
      (SELECT finished, pk FROM penstock.jobs
       WHERE queue = $1 AND state = 6 AND run IS NULL AND (finished, pk) <= ($2, $3) ORDER BY finished, pk LIMIT $4)
    ) AS f ORDER BY finished, pk LIMIT $4))
  FOR UPDATE SKIP LOCKED)
RETURNING coalesce(scope, id), id;

-- name: expired_dedupe_keys
-- Here and below: a subquery after IN may be executed again for each row, and would then skip the rows that are gone and find others.
WITH old AS MATERIALIZED (
  SELECT queue, key FROM penstock.dedupe_keys WHERE until IS NOT NULL AND until <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.dedupe_keys AS d USING old WHERE d.queue = old.queue AND d.key = old.key;

-- name: free_dedupe_keys
DELETE FROM penstock.dedupe_keys WHERE job = ANY ($1) AND until IS NULL;

-- name: expired_rates
WITH old AS MATERIALIZED (SELECT queue, key FROM penstock.rates WHERE until <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM penstock.rates AS r USING old WHERE r.queue = old.queue AND r.key = old.key;

-- name: expire_damaged_leases
UPDATE penstock.jobs SET lease = $2 WHERE queue = $1 AND state = 2 AND (lease IS NULL OR lease > $3);

-- name: date_finished_jobs
UPDATE penstock.jobs SET finished = 0
WHERE queue = $1 AND state IN (4, 5, 6) AND state >= 4 AND run IS NULL AND finished IS NULL;

-- name: expired_holds
DELETE FROM penstock.queue_holds WHERE queue IN (SELECT queue FROM penstock.queue_holds WHERE until <= $1 LIMIT $2);

-- name: expired_states
DELETE FROM penstock.states WHERE key = ANY (ARRAY(
  SELECT key FROM penstock.states WHERE expires IS NOT NULL AND expires <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: old_once_keys
DELETE FROM penstock.once_keys WHERE key IN (SELECT key FROM penstock.once_keys WHERE at < $1 LIMIT $2);

-- name: old_applied_units
DELETE FROM penstock.applied_units WHERE id IN (SELECT id FROM penstock.applied_units WHERE at < $1 LIMIT $2);

-- name: find_versions
-- Not by to_regclass, whose cache may lack what another transaction has just created.
SELECT count(c.oid) FROM pg_catalog.pg_namespace AS n
LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'schema_versions'
WHERE n.nspname = $1 GROUP BY n.oid;

-- name: schemas_in_use
SELECT n.nspname FROM pg_catalog.pg_namespace AS n
JOIN pg_catalog.pg_class AS v ON v.relnamespace = n.oid AND v.relname = 'schema_versions'
JOIN pg_catalog.pg_class AS u ON u.relnamespace = n.oid AND u.relname = 'enlisted_units' ORDER BY n.nspname;

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema};

-- name: create_versions
CREATE TABLE penstock.schema_versions (number integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());

-- name: versions
SELECT number FROM penstock.schema_versions ORDER BY number;

-- name: add_version
INSERT INTO penstock.schema_versions (number) VALUES ($1);

-- name: lock
SELECT pg_advisory_xact_lock($1);

-- name: facts
SELECT current_setting('server_version'), pg_encoding_to_char(d.encoding),
       (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c
        WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p')),
       current_setting('synchronous_commit'), current_setting('fsync')
FROM pg_database AS d WHERE d.datname = current_database();

-- name: connection_limits
-- What limits the number of connections: its name, the maximum (-1: none) and how many there are.
WITH others AS (SELECT datid, usesysid FROM pg_stat_activity
                WHERE datid IS NOT NULL AND usesysid IS NOT NULL AND leader_pid IS NULL)
SELECT 'max_connections', current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true)::int, 0), (SELECT count(*) FROM others)
UNION ALL
SELECT 'the CONNECTION LIMIT of role ' || r.rolname, r.rolconnlimit,
       (SELECT count(*) FROM others WHERE usesysid = r.oid) FROM pg_roles AS r WHERE r.rolname = current_user
UNION ALL
SELECT 'the CONNECTION LIMIT of database ' || d.datname, d.datconnlimit,
       (SELECT count(*) FROM others WHERE datid = d.oid) FROM pg_database AS d WHERE d.datname = current_database();

-- name: commit_without_flush
SET synchronous_commit = off;

-- name: notify
SELECT pg_notify($1, $2);

-- name: identity_query
-- Also runs on the caller's connection, whatever its settings: its result must not depend on them.
SELECT d.oid || '/' || d.datname, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       current_setting('transaction_isolation')
FROM pg_catalog.pg_database AS d WHERE d.datname = current_database();

-- name: enlist_unit
INSERT INTO penstock.enlisted_units (unit) VALUES ({0});

-- name: namespace
SELECT value FROM penstock.store_info WHERE name = 'namespace';

-- name: set_namespace
INSERT INTO penstock.store_info (name, value) VALUES ('namespace', $1) ON CONFLICT (name) DO NOTHING;

-- name: report_worker
INSERT INTO penstock.workers (id, facts, seen, expires)
SELECT $1, $2, t.now, t.now + $3 FROM (SELECT penstock.now_ms($4) AS now) AS t
ON CONFLICT (id) DO UPDATE SET facts = excluded.facts, seen = excluded.seen, expires = excluded.expires;

-- name: remove_worker
DELETE FROM penstock.workers WHERE id = $1;

-- name: live_workers
SELECT id, facts, seen, expires FROM penstock.workers WHERE expires > (SELECT penstock.now_ms($1)) ORDER BY id;

-- name: expired_workers
DELETE FROM penstock.workers WHERE id IN (SELECT id FROM penstock.workers WHERE expires <= $1 LIMIT $2);

-- name: add_counts
INSERT INTO penstock.queue_minutes AS m (queue, minute, added, completed, failed, retried)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
ON CONFLICT (queue, minute) DO UPDATE SET added = m.added + excluded.added, completed = m.completed + excluded.completed,
  failed = m.failed + excluded.failed, retried = m.retried + excluded.retried;

-- name: rates
SELECT queue, minute, added, completed, failed, retried FROM penstock.queue_minutes
WHERE ($1::text IS NULL OR queue = $1) AND minute >= $2 ORDER BY minute, queue;

-- name: old_counts
DELETE FROM penstock.queue_minutes WHERE (queue, minute) IN (
  SELECT queue, minute FROM penstock.queue_minutes WHERE minute < $1 LIMIT $2);

-- name: oldest_waiting
SELECT * FROM penstock.oldest_waiting($1);

-- name: open_keys
-- The first $2 jobs of each state, by the index of that state.
SELECT key, state, count(*) FROM (
  (SELECT coalesce(order_key, rate_key) AS key, 'waiting' AS state FROM penstock.jobs
   WHERE queue = $1 AND state = 0 ORDER BY priority, pk LIMIT $2)
  UNION ALL
  (SELECT coalesce(order_key, rate_key), 'held' FROM penstock.jobs
   WHERE queue = $1 AND state = -1 AND state IN (-1, 3) ORDER BY pk LIMIT $2)
  UNION ALL
  (SELECT coalesce(order_key, rate_key), 'delayed' FROM penstock.jobs
   WHERE queue = $1 AND state = 1 ORDER BY due, pk LIMIT $2)
  UNION ALL
  (SELECT coalesce(order_key, rate_key), 'active' FROM penstock.jobs
   WHERE queue = $1 AND state = 2 ORDER BY lease LIMIT $2)) AS j
WHERE key IS NOT NULL GROUP BY key, state ORDER BY key, state;

-- name: reset_rates
DELETE FROM penstock.rates WHERE queue = $1;

-- name: error_groups
SELECT g.error_group, g.n, g.first, g.last, j.id FROM (
  SELECT error_group, count(*) AS n, min(created) AS first, max(created) AS last, max(pk) AS pk
  FROM penstock.jobs WHERE queue = $1 AND state = 0 AND error_group IS NOT NULL GROUP BY error_group) AS g
JOIN penstock.jobs AS j ON j.pk = g.pk ORDER BY g.n DESC, g.error_group;

-- name: jobs_of_error_group
SELECT id FROM penstock.jobs WHERE queue = $1 AND state = 0 AND error_group = $2 AND error_group IS NOT NULL
  AND pk > coalesce((SELECT pk FROM penstock.jobs WHERE id = $3), 0) ORDER BY pk LIMIT $4;
