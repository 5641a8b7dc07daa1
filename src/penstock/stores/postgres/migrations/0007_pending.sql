-- Units that are handed in through someone else's connection, inside his transaction. They wait here until he commits, and
-- are applied by that very commit: a deferred trigger is the last thing a transaction does. So the locks of streams and
-- queues are held for as long as a commit takes and not for as long as he thinks; what he rolls back was never there.

-- No row outlives the transaction that wrote it, so the table needs no log.
CREATE UNLOGGED TABLE penstock.pending (
  tx   xid8 NOT NULL DEFAULT pg_current_xact_id(),
  n    bigint GENERATED ALWAYS AS IDENTITY,
  unit text NOT NULL,                             -- one unit as json; what is bytea elsewhere is base64 in it
  PRIMARY KEY (tx, n)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Applies units of the outside world (a run begun, events, jobs, state), in order; gives the topics to tell of.
CREATE FUNCTION penstock.apply_pending(units json) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  count integer := json_array_length(units);
  u_id text[];
  u_remember boolean[];
  u_run_id text[];
  u_expect bigint[];
  u_flow text[];
  u_status text[];
  u_flags integer[];
  u_record bytea[];
  u_rest boolean[];
  u_once text[];
  runs text[];
  kinds bigint[];
  topics text[];
  news integer;
BEGIN
  SELECT array_agg(u.id ORDER BY u.n), array_agg(u.remember ORDER BY u.n), array_agg(u.run_id ORDER BY u.n),
         array_agg(u.expect ORDER BY u.n), array_agg(u.flow ORDER BY u.n), array_agg(u.status ORDER BY u.n),
         array_agg(u.flags ORDER BY u.n), array_agg(decode(u.record, 'base64') ORDER BY u.n),
         array_agg(u.rest ORDER BY u.n), array_agg(u.once ORDER BY u.n)
  INTO u_id, u_remember, u_run_id, u_expect, u_flow, u_status, u_flags, u_record, u_rest, u_once
  FROM ROWS FROM (json_to_recordset(units) AS (
    id text, remember boolean, run_id text, expect bigint, flow text, status text, flags integer, record text, rest boolean,
    once text)) WITH ORDINALITY AS u (id, remember, run_id, expect, flow, status, flags, record, rest, once, n);
  runs := ARRAY(SELECT DISTINCT r.id COLLATE "C" FROM unnest(u_run_id) AS r (id) WHERE r.id IS NOT NULL ORDER BY 1);
  kinds := ARRAY(SELECT DISTINCT k.key::bigint FROM json_array_elements(units) AS d (doc),
                 json_array_elements_text(d.doc -> 'kinds') AS k (key) ORDER BY 1);
  topics := ARRAY(SELECT DISTINCT t.topic FROM json_array_elements(units) AS d (doc),
                  json_array_elements_text(d.doc -> 'topics') AS t (topic));
  WITH docs AS (
    SELECT d.doc, d.n::integer AS n,
           coalesce(sum(json_array_length(d.doc -> 'jobs'))
                    OVER (ORDER BY d.n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::integer AS before
    FROM json_array_elements(units) WITH ORDINALITY AS d (doc, n)),
  jobs AS (
    SELECT array_agg(d.n ORDER BY d.n, j.o) AS unit, array_agg(j.id ORDER BY d.n, j.o) AS id,
           array_agg(j.queue ORDER BY d.n, j.o) AS queue, array_agg(j.name ORDER BY d.n, j.o) AS name,
           array_agg(j.payload::json ORDER BY d.n, j.o) AS payload, array_agg(j.priority ORDER BY d.n, j.o) AS priority,
           array_agg(j.due ORDER BY d.n, j.o) AS due, array_agg(j.run ORDER BY d.n, j.o) AS run,
           array_agg(j.scope ORDER BY d.n, j.o) AS scope,
           array_agg(decode(j.opts, 'base64') ORDER BY d.n, j.o) AS opts,
           array_agg(j.stream ORDER BY d.n, j.o) AS stream, array_agg(j.head ORDER BY d.n, j.o) AS head,
           array_agg(j.rate_key ORDER BY d.n, j.o) AS rate_key
    FROM docs AS d, ROWS FROM (json_to_recordset(d.doc -> 'jobs') AS (
      id text, queue text, name text, payload text, priority bigint, due bigint, run text, scope text, opts text, stream text,
      head text, rate_key text)) WITH ORDINALITY
      AS j (id, queue, name, payload, priority, due, run, scope, opts, stream, head, rate_key, o)),
  said AS (
    SELECT array_agg(d.n ORDER BY d.n, e.o) AS unit, array_agg(d.before + e.job ORDER BY d.n, e.o) AS job,
           array_agg(e.stream ORDER BY d.n, e.o) AS stream, array_agg(e.kind ORDER BY d.n, e.o) AS kind,
           array_agg(e.body::json ORDER BY d.n, e.o) AS body
    FROM docs AS d, ROWS FROM (json_to_recordset(d.doc -> 'events') AS (job integer, stream text, kind text, body text))
      WITH ORDINALITY AS e (job, stream, kind, body, o)),
  keys AS (
    SELECT array_agg(d.n ORDER BY d.n, s.o) AS unit, array_agg(s.key ORDER BY d.n, s.o) AS key,
           array_agg(decode(s.value, 'base64') ORDER BY d.n, s.o) AS value,
           array_agg(s.expect ORDER BY d.n, s.o) AS expect, array_agg(s.expires ORDER BY d.n, s.o) AS expires
    FROM docs AS d, ROWS FROM (json_to_recordset(d.doc -> 'state') AS (key text, value text, expect bigint, expires bigint))
      WITH ORDINALITY AS s (key, value, expect, expires, o))
  SELECT t.told INTO news FROM jobs AS j, said AS e, keys AS s, penstock.transact(
    given_now => (SELECT max((d.doc ->> 'now')::bigint) FROM docs AS d),
    kinds => kinds, kinds_opened => array_fill(false, ARRAY[cardinality(kinds)]),
    stretches => ARRAY[count], r_ids => runs, handles => '{}',
    u_id => u_id, u_remember => u_remember, u_job => array_fill(NULL::integer, ARRAY[count]),
    u_attempt => array_fill(NULL::integer, ARRAY[count]), u_token => array_fill(NULL::text, ARRAY[count]),
    u_guard => array_fill(false, ARRAY[count]),
    u_run => ARRAY(SELECT array_position(runs, r.id) FROM unnest(u_run_id) WITH ORDINALITY AS r (id, n) ORDER BY r.n),
    u_run_id => u_run_id, u_expect => u_expect, u_after => array_fill(NULL::text, ARRAY[count]),
    u_flow => u_flow, u_status => u_status, u_flags => u_flags, u_record => u_record,
    u_end => array_fill(NULL::smallint, ARRAY[count]), u_failed => array_fill(NULL::smallint, ARRAY[count]),
    u_due => array_fill(NULL::bigint, ARRAY[count]), u_result => array_fill(NULL::json, ARRAY[count]),
    u_error => array_fill(NULL::json, ARRAY[count]), u_progress => array_fill(NULL::json, ARRAY[count]),
    u_rest => u_rest, u_once => u_once, u_schedule => array_fill(NULL::text, ARRAY[count]),
    u_slot => array_fill(NULL::bigint, ARRAY[count]), u_next => array_fill(NULL::bigint, ARRAY[count]),
    j_unit => coalesce(j.unit, '{}'), j_id => coalesce(j.id, '{}'), j_queue => coalesce(j.queue, '{}'),
    j_name => coalesce(j.name, '{}'), j_payload => coalesce(j.payload, '{}'), j_priority => coalesce(j.priority, '{}'),
    j_due => coalesce(j.due, '{}'), j_run => coalesce(j.run, '{}'), j_scope => coalesce(j.scope, '{}'),
    j_opts => coalesce(j.opts, '{}'), j_stream => coalesce(j.stream, '{}'), j_head => coalesce(j.head, '{}'),
    j_rate_key => coalesce(j.rate_key, '{}'),
    e_unit => coalesce(e.unit, '{}'), e_job => coalesce(e.job, '{}'), e_stream => coalesce(e.stream, '{}'),
    e_kind => coalesce(e.kind, '{}'), e_body => coalesce(e.body, '{}'),
    m_unit => '{}', m_scope => '{}', m_name => '{}', m_value => '{}', t_unit => '{}', t_id => '{}', k_unit => '{}',
    k_id => '{}', w_unit => '{}', w_opens => '{}', w_id => '{}', w_run => '{}', w_scope => '{}', w_kind => '{}',
    w_state => '{}', w_lenient => '{}', w_due => '{}', w_job => '{}', w_topic => '{}', w_key => '{}', w_body => '{}',
    s_unit => coalesce(s.unit, '{}'), s_key => coalesce(s.key, '{}'), s_value => coalesce(s.value, '{}'),
    s_expect => coalesce(s.expect, '{}'), s_expires => coalesce(s.expires, '{}'),
    worker => NULL, lease_ms => NULL, secret => NULL, most => NULL, q_name => '{}', q_limit => '{}', q_max_active => '{}',
    q_rate => '{}', q_span => '{}', q_per_key => '{}') AS t;
  RETURN CASE WHEN news > 0 THEN topics || 'queue:penstock-events'::text ELSE topics END;
END $$;

CREATE FUNCTION penstock.settle() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  units json;
  topics text[];
  words text;
  tries integer := 0;
BEGIN
  -- All of the transaction's units in one call, by the first of their triggers: locks are then taken in the one order that
  -- all commits keep.
  WITH mine AS (DELETE FROM penstock.pending WHERE tx = pg_current_xact_id() RETURNING n, unit)
  SELECT json_agg(m.unit::json ORDER BY m.n) INTO units FROM mine AS m;
  IF units IS NULL THEN
    RETURN NULL;
  END IF;
  LOOP
    BEGIN
      topics := penstock.apply_pending(units);
      EXIT;
    EXCEPTION WHEN serialization_failure OR deadlock_detected OR unique_violation THEN
      -- Another was faster with the same stream or run, or two waited for each other: once more, and the other is done.
      tries := tries + 1;
      IF tries >= 12 THEN
        RAISE;
      END IF;
    END;
  END LOOP;
  words := concat_ws(E'\n', 'tx', array_to_string(topics, E'\n'));
  PERFORM pg_notify(TG_TABLE_SCHEMA || '_wake', CASE WHEN octet_length(words) > 7900 THEN E'tx\n*' ELSE words END);
  RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER settle AFTER INSERT ON penstock.pending DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION penstock.settle();
-- Also for a session that has switched triggers off (session_replication_role): a row that is not settled is lost work.
ALTER TABLE penstock.pending ENABLE ALWAYS TRIGGER settle;
