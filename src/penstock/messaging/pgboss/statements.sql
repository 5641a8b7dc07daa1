-- The tables of pg-boss since its schema version 34. `pgboss.` is replaced by the schema's name.
-- The states of a job, in order: created, retry, active, completed, cancelled, failed.

-- name: version
SELECT version FROM pgboss.version;

-- name: queues
SELECT name, policy FROM pgboss.queue WHERE name = ANY ($1::text[]);

-- name: columns
SELECT c.relname || '.' || a.attname FROM pg_catalog.pg_attribute AS a
JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname IN ('job', 'queue', 'schedule') AND a.attnum > 0 AND NOT a.attisdropped;

-- name: claim
-- A queue with the policy singleton or stately has at most one active job per key. Only pg-boss runs key_strict_fifo.
-- Data larger than $2 bytes stays in the database: its size is enough to fail the job.
WITH next AS (
  SELECT j.id FROM pgboss.job AS j
  WHERE j.name = $1 AND j.state < 'active' AND NOT j.blocked AND j.start_after <= now()
    AND j.policy IS DISTINCT FROM 'key_strict_fifo'
    AND (j.policy IS NULL OR j.policy NOT IN ('singleton', 'stately') OR NOT EXISTS (
      SELECT 1 FROM pgboss.job AS a WHERE a.name = j.name AND a.state = 'active' AND a.policy = j.policy
        AND coalesce(a.singleton_key, '') = coalesce(j.singleton_key, '')))
  ORDER BY j.priority DESC, j.created_on LIMIT 1 FOR UPDATE OF j SKIP LOCKED)
UPDATE pgboss.job AS j SET state = 'active', started_on = now(), heartbeat_on = now(),
  retry_count = j.retry_count + CASE WHEN j.started_on IS NULL OR j.retry_count = 2147483647 THEN 0 ELSE 1 END
FROM next WHERE j.name = $1 AND j.id = next.id
RETURNING j.id, CASE WHEN octet_length(j.data::text) <= $2 THEN j.data::text END, coalesce(octet_length(j.data::text), 0),
  j.retry_count, j.expire_seconds, j.heartbeat_seconds;

-- name: depth
SELECT count(*) FROM pgboss.job WHERE name = $1 AND state < 'active' AND NOT blocked AND start_after <= now();

-- name: touch
UPDATE pgboss.job SET heartbeat_on = now() WHERE name = $1 AND id = $2 AND retry_count = $3 AND state = 'active'
RETURNING true;

-- name: release
-- Without started_on, the next claim does not count as another attempt.
UPDATE pgboss.job SET state = (CASE WHEN retry_count > 0 THEN 'retry' ELSE 'created' END)::pgboss.job_state,
  started_on = NULL, heartbeat_on = NULL
WHERE name = $1 AND id = $2 AND retry_count = $3 AND state = 'active' RETURNING true;

-- name: complete
-- retry_count distinguishes this attempt from a later one.
UPDATE pgboss.job SET state = 'completed', completed_on = now(), output = $4::jsonb
WHERE name = $1 AND id = $2 AND retry_count = $3 AND state = 'active' RETURNING true;

-- name: fail
-- Retry the job if it has attempts left and $5 allows it. Otherwise fail it and, if $6, copy it to its dead letter queue.
-- A delay is at most 100 years: the largest ones lead to dates that Postgres cannot store.
WITH settled AS (
  UPDATE pgboss.job AS j SET
    state = (CASE WHEN $5 AND j.retry_count < j.retry_limit THEN 'retry' ELSE 'failed' END)::pgboss.job_state,
    completed_on = CASE WHEN $5 AND j.retry_count < j.retry_limit THEN NULL ELSE now() END,
    start_after = CASE
      WHEN NOT $5 OR j.retry_count >= j.retry_limit THEN j.start_after
      WHEN NOT j.retry_backoff THEN now() + j.retry_delay * interval '1 second'
      ELSE now() + interval '1 second' * least(
        3155760000, j.retry_delay_max, greatest(j.retry_delay, 1) * 2 ^ least(15, j.retry_count) * (1 + random())) END,
    heartbeat_on = NULL, output = $4::jsonb
  WHERE j.name = $1 AND j.id = $2 AND j.retry_count = $3 AND j.state = 'active' RETURNING j.*),
dead_letter AS (
  INSERT INTO pgboss.job (name, priority, data, retry_limit, retry_delay, retry_backoff, retry_delay_max, expire_seconds,
                          deletion_seconds, heartbeat_seconds, start_after, created_on, keep_until, singleton_key, group_id,
                          group_tier, source_name, source_id, source_created_on, source_retry_count)
  SELECT q.name, s.priority, s.data, q.retry_limit, q.retry_delay, q.retry_backoff, q.retry_delay_max, q.expire_seconds,
         q.deletion_seconds, q.heartbeat_seconds, now(), now(), now() + q.retention_seconds * interval '1 second',
         s.singleton_key, s.group_id, s.group_tier, s.name, s.id, s.created_on, s.retry_count
  FROM settled AS s JOIN pgboss.queue AS q ON q.name = s.dead_letter WHERE s.state = 'failed' AND $6
  RETURNING name, id)
SELECT s.state::text, b.name, b.id FROM settled AS s LEFT JOIN dead_letter AS b ON true;

-- name: set_dead_letter_source
-- Since schema version 43, a dead letter has the error and the id of the first job.
UPDATE pgboss.job AS d SET source_output = s.output, source_root_id = coalesce(s.source_root_id, s.id)
FROM pgboss.job AS s WHERE d.name = $1 AND d.id = $2 AND s.name = $3 AND s.id = $4;

-- name: overdue_jobs
SELECT id, retry_count FROM pgboss.job
WHERE name = $1 AND state = 'active' AND (
  started_on < now() - expire_seconds * interval '1 second'
  OR heartbeat_on < now() - heartbeat_seconds * interval '1 second')
LIMIT 100;

-- name: send
-- The queue's options are the defaults. A queue with notify wakes the workers of pg-boss.
WITH sent AS (
  INSERT INTO pgboss.job (id, name, data, priority, start_after, created_on, keep_until, singleton_key, expire_seconds,
                          deletion_seconds, retry_limit, retry_delay, retry_backoff, retry_delay_max, policy, dead_letter,
                          heartbeat_seconds)
  SELECT coalesce($2::uuid, gen_random_uuid()), q.name, $3::jsonb, $4, s.due, now(),
         s.due + q.retention_seconds * interval '1 second', $6, coalesce($7, q.expire_seconds), q.deletion_seconds,
         coalesce($8, q.retry_limit), coalesce($9, q.retry_delay), coalesce($10, q.retry_backoff), q.retry_delay_max,
         q.policy, coalesce($11, q.dead_letter), q.heartbeat_seconds
  FROM pgboss.queue AS q, (SELECT coalesce(to_timestamp($5::float8), now()) AS due) AS s WHERE q.name = $1
  ON CONFLICT DO NOTHING RETURNING id, start_after),
notified AS (
  SELECT pg_notify('pgboss_' || left(encode(sha224($12::text::bytea), 'hex'), 24), $1)
  FROM sent JOIN pgboss.queue AS q ON q.name = $1 AND q.notify WHERE sent.start_after <= now())
SELECT (SELECT id FROM sent), (SELECT count(*) FROM notified), EXISTS (SELECT 1 FROM pgboss.queue WHERE name = $1);

-- name: backlog
-- Jobs that an import moves, in the order in which they would run: waiting, deferred or retried. Jobs that wait for other
-- jobs stay. A job with started_on has used one attempt more than retry_count.
SELECT id, name, CASE WHEN octet_length(data::text) <= $2 THEN data::text END, coalesce(octet_length(data::text), 0),
       priority, CASE WHEN isfinite(start_after) THEN (extract(epoch FROM start_after) * 1000)::bigint END AS due,
       start_after > now() AS is_delayed,
       retry_limit::bigint + 1 - retry_count - CASE WHEN started_on IS NULL THEN 0 ELSE 1 END AS attempts_left,
       retry_delay, retry_backoff, retry_delay_max
FROM pgboss.job WHERE state < 'active' AND NOT blocked AND left(name, 10) <> '__pgboss__'
  AND ($1::text[] IS NULL OR name = ANY ($1))
ORDER BY priority DESC, created_on, id;

-- name: shared_ids
-- Ids that waiting jobs of several queues have: in pg-boss, an id is unique in its queue only.
SELECT id FROM pgboss.job WHERE state < 'active' GROUP BY id HAVING count(*) > 1;

-- name: lock_backlog
-- The next jobs of the backlog, locked against the workers of pg-boss until the transaction ends.
SELECT id, name, CASE WHEN octet_length(data::text) <= $4 THEN data::text END, coalesce(octet_length(data::text), 0),
       priority, CASE WHEN isfinite(start_after) THEN (extract(epoch FROM start_after) * 1000)::bigint END AS due,
       start_after > now() AS is_delayed,
       retry_limit::bigint + 1 - retry_count - CASE WHEN started_on IS NULL THEN 0 ELSE 1 END AS attempts_left,
       retry_delay, retry_backoff, retry_delay_max
FROM pgboss.job WHERE state < 'active' AND NOT blocked AND left(name, 10) <> '__pgboss__'
  AND ($1::text[] IS NULL OR name = ANY ($1)) AND id <> ALL ($2::uuid[])
ORDER BY priority DESC, created_on, id LIMIT $3 FOR UPDATE SKIP LOCKED;

-- name: delete_jobs
DELETE FROM pgboss.job AS j USING unnest($1::text[], $2::uuid[]) AS g (name, id) WHERE j.name = g.name AND j.id = g.id;

-- name: schedules
SELECT name, key, cron, coalesce(timezone, 'UTC'), data::text, coalesce(to_jsonb(s) ->> 'kind', 'cron')
FROM pgboss.schedule AS s WHERE $1::text[] IS NULL OR name = ANY ($1) ORDER BY name, key;

-- name: delete_schedule
DELETE FROM pgboss.schedule WHERE name = $1 AND key = $2;
