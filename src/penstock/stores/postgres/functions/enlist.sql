-- Units handed in through the caller's own connection, inside the caller's transaction. They wait in enlisted_units until that
-- transaction commits: a deferred trigger applies them as its last act. So streams and queues are locked for as long as a commit
-- takes, not for as long as the transaction is open, and a rollback leaves nothing behind.

-- Applies units that come from outside (new runs, events, jobs, state) in order. Returns the topics to notify.
CREATE OR REPLACE FUNCTION penstock.commit_enlisted(docs json) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  run_ids text[] := ARRAY(
    SELECT DISTINCT (d.doc ->> 'run_id') COLLATE "C" FROM json_array_elements(docs) AS d (doc)
    WHERE d.doc ->> 'run_id' IS NOT NULL ORDER BY 1);
  topics text[] := ARRAY(
    SELECT DISTINCT t.topic FROM json_array_elements(docs) AS d (doc), json_array_elements_text(d.doc -> 'wakes') AS t (topic));
  deliveries integer;
BEGIN
  WITH numbered AS (
    SELECT d.doc, d.n::integer AS n,
           coalesce(sum(json_array_length(d.doc -> 'jobs'))
                    OVER (ORDER BY d.n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::integer AS jobs_before
    FROM json_array_elements(docs) WITH ORDINALITY AS d (doc, n))
  SELECT c.deliveries INTO deliveries FROM penstock.commit_units(
    (SELECT max((d.doc ->> 'now')::bigint) FROM numbered AS d),
    ARRAY[json_array_length(docs)],
    run_ids,
    '{}',
    ARRAY(SELECT (k.key, false)::penstock.topic_lock FROM (
            SELECT DISTINCT t.key::bigint AS key FROM numbered AS d, json_array_elements_text(d.doc -> 'topics') AS t (key)
            ORDER BY 1) AS k),
    ARRAY(SELECT (u.id, u.is_remembered, NULL, NULL, NULL, false, array_position(run_ids, d.doc ->> 'run_id'),
                  u.expected_version, NULL, u.kind, u.flow, u.status, u.closed, u.paused, u.cancels_jobs, decode(u.record, 'base64'),
                  NULL, NULL, NULL, NULL, NULL, NULL, u.has_extras, 0)::penstock.new_unit
          FROM numbered AS d, json_to_record(d.doc -> 'unit') AS u (
            id text, is_remembered boolean, expected_version bigint, kind text, flow text, status text, closed boolean, paused boolean,
            cancels_jobs boolean, record text, has_extras boolean) ORDER BY d.n),
    ARRAY(SELECT (d.n, j.id, j.queue, j.name, j.payload::json, j.priority, j.due, j.run, j.scope, decode(j.opts, 'base64'),
                  j.started_stream, j.started_prefix, j.rate_key, false, j.order_key, NULL)::penstock.new_job
          FROM numbered AS d, ROWS FROM (json_to_recordset(d.doc -> 'jobs') AS (
            id text, queue text, name text, payload text, priority bigint, due bigint, run text, scope text, opts text,
            started_stream text, started_prefix text, rate_key text, order_key text)) WITH ORDINALITY
            AS j (id, queue, name, payload, priority, due, run, scope, opts, started_stream, started_prefix, rate_key, order_key, o)
          ORDER BY d.n, j.o),
    ARRAY(SELECT (d.n, d.jobs_before + e.job, e.stream, e.kind, e.body::json, e.original::json)::penstock.new_event
          FROM numbered AS d, ROWS FROM (json_to_recordset(d.doc -> 'events') AS (
            job integer, stream text, kind text, body text, original text)) WITH ORDINALITY
            AS e (job, stream, kind, body, original, o)
          ORDER BY d.n, e.o),
    (SELECT ('{}', '{}', '{}', '{}', ARRAY(
        SELECT (d.n, s.key, decode(s.value, 'base64'), s.expect, s.expires)::penstock.state_write
        FROM numbered AS d, ROWS FROM (json_to_recordset(d.doc -> 'states') AS (
          key text, value text, expect bigint, expires bigint)) WITH ORDINALITY AS s (key, value, expect, expires, o)
        ORDER BY d.n, s.o), '{}', ARRAY(
        SELECT (d.n, d.doc ->> 'once_key')::penstock.once_key FROM numbered AS d WHERE d.doc ->> 'once_key' IS NOT NULL),
        '{}', '{}', '{}', '{}', '{}', '{}', '{}', ARRAY(
        SELECT (d.n, j.doc ->> 'queue', j.doc ->> 'order_key')::penstock.order_ref
        FROM numbered AS d, json_array_elements(d.doc -> 'jobs') AS j (doc) WHERE j.doc ->> 'order_key' IS NOT NULL),
        '{}', ARRAY(
        SELECT (d.n, d.doc ->> 'run_id', k.key)::penstock.run_key
        FROM numbered AS d, json_array_elements_text(d.doc -> 'run_keys') AS k (key)), '{}'
      )::penstock.unit_extras),
    NULL) AS c;
  RETURN CASE WHEN deliveries > 0 THEN topics || 'queue:penstock-events'::text ELSE topics END;
END $$;

CREATE OR REPLACE FUNCTION penstock.apply_enlisted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  docs json;
  topics text[];
  message text;
  tries integer := 0;
BEGIN
  -- The first trigger of the transaction applies all of its units in one call, so that locks are taken in the one order that
  -- all commits keep.
  WITH mine AS (DELETE FROM penstock.enlisted_units WHERE tx = pg_current_xact_id() RETURNING n, unit)
  SELECT json_agg(m.unit::json ORDER BY m.n) INTO docs FROM mine AS m;
  IF docs IS NULL THEN
    RETURN NULL;
  END IF;
  LOOP
    BEGIN
      topics := penstock.commit_enlisted(docs);
      EXIT;
    EXCEPTION WHEN serialization_failure OR deadlock_detected OR unique_violation THEN
      -- Another transaction was faster with the same stream or run, or the two waited for each other. It is done now.
      tries := tries + 1;
      IF tries >= 12 THEN
        RAISE;
      END IF;
    END;
  END LOOP;
  message := concat_ws(E'\n', 'tx', array_to_string(topics, E'\n'));
  PERFORM pg_notify(TG_TABLE_SCHEMA || '_wake', CASE WHEN octet_length(message) > 7900 THEN E'tx\n*' ELSE message END);
  RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS apply_enlisted ON penstock.enlisted_units;
CREATE CONSTRAINT TRIGGER apply_enlisted AFTER INSERT ON penstock.enlisted_units DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION penstock.apply_enlisted();
-- Also for a session that has switched triggers off (session_replication_role): a row that is not applied is lost work.
ALTER TABLE penstock.enlisted_units ENABLE ALWAYS TRIGGER apply_enlisted;
