-- The commonest call: attempts of plain jobs completed, and then more of the kind are wanted. What `transact` does for it takes
-- a hundred and fifty small expressions, each of which Postgres makes ready anew in every transaction, before it does
-- anything; here are a few statements. Whatever is out of the ordinary (a job that is due only now, a lease that ran out, a
-- queue that is held, a job of a run) is left to `transact`, whole.

-- Units come in the order of their jobs, each job once.
CREATE FUNCTION penstock.finish(
  given_now bigint, u_pk bigint[], u_id text[], u_attempt integer[], u_token text[], u_result json[],
  e_unit integer[], e_stream text[], e_body json[],
  worker text, lease_ms bigint, secret text, most integer, q_name text[], q_limit integer[],
  OUT now bigint, OUT verdicts smallint[], OUT homes integer[], OUT ranks integer[], OUT bases bigint[],
  OUT times bigint[], OUT claims bigint[], OUT emptied text[], OUT next_due bigint,
  OUT c_id text[], OUT c_queue text[], OUT c_name text[], OUT c_payload json[], OUT c_opts bytea[], OUT c_scope text[],
  OUT c_attempt integer[], OUT c_failures integer[], OUT c_crashes integer[], OUT c_run text[], OUT c_version bigint[],
  OUT c_record bytea[], OUT c_stream text[], OUT memo_scopes text[], OUT memo_names text[], OUT memo_values bytea[]
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  count integer := cardinality(u_id);
  waiting bigint;
  done bigint[];
  rare boolean;
  recalls boolean;
  started text[];
  heads json[];
  home bigint;
  base bigint;
  at bigint;
  top bigint;
  part bigint;
  stamp bigint;
BEGIN
  now := penstock.moment(given_now);
  SELECT min(least(x.due, x.lease)), sum(x.waiting), bool_or(x.held) OR sum(x.runs) > 0 OR min(least(x.due, x.lease)) <= now
  INTO next_due, waiting, rare FROM (
    SELECT (SELECT min(j.due) FROM penstock.jobs AS j WHERE j.queue = w.name AND j.state = 1) AS due,
           (SELECT min(j.lease) FROM penstock.jobs AS j WHERE j.queue = w.name AND j.state = 2) AS lease,
           (SELECT true FROM penstock.holds AS h WHERE h.queue = w.name AND h.until > now) AS held, f.waiting, f.runs
    FROM unnest(q_name) AS w (name) JOIN penstock.queues AS k ON k.name = w.name AND NOT k.paused, LATERAL (
      SELECT count(*) AS waiting, count(p.run) AS runs FROM (
        SELECT j.run FROM penstock.jobs AS j WHERE j.queue = w.name AND j.state = 0
        ORDER BY j.priority, j.pk LIMIT most) AS p) AS f) AS x;
  IF rare THEN
    SELECT t.now, t.verdicts, t.homes, t.ranks, t.bases, t.times, t.claims, t.emptied, t.next_due, t.c_id, t.c_queue, t.c_name,
           t.c_payload, t.c_opts, t.c_scope, t.c_attempt, t.c_failures, t.c_crashes, t.c_run, t.c_version, t.c_record,
           t.c_stream, t.memo_scopes, t.memo_names, t.memo_values
    INTO now, verdicts, homes, ranks, bases, times, claims, emptied, next_due, c_id, c_queue, c_name, c_payload, c_opts,
         c_scope, c_attempt, c_failures, c_crashes, c_run, c_version, c_record, c_stream, memo_scopes, memo_names, memo_values
    FROM penstock.transact(
      given_now => given_now, kinds => '{}', kinds_opened => '{}', stretches => array_remove(ARRAY[count], 0),
      r_ids => '{}', handles => u_pk, u_id => u_id, u_remember => array_fill(false, ARRAY[count]),
      u_job => ARRAY(SELECT n FROM generate_series(1, count) AS n ORDER BY n), u_attempt => u_attempt, u_token => u_token,
      u_guard => array_fill(false, ARRAY[count]), u_run => array_fill(NULL::integer, ARRAY[count]),
      u_run_id => array_fill(NULL::text, ARRAY[count]), u_expect => array_fill(NULL::bigint, ARRAY[count]),
      u_after => array_fill(NULL::text, ARRAY[count]), u_flow => array_fill(NULL::text, ARRAY[count]),
      u_status => array_fill(NULL::text, ARRAY[count]), u_flags => array_fill(NULL::integer, ARRAY[count]),
      u_record => array_fill(NULL::bytea, ARRAY[count]), u_end => array_fill(4::smallint, ARRAY[count]),
      u_failed => array_fill(0::smallint, ARRAY[count]), u_due => array_fill(NULL::bigint, ARRAY[count]),
      u_result => u_result, u_error => array_fill(NULL::json, ARRAY[count]), u_progress => array_fill(NULL::json, ARRAY[count]),
      u_rest => array_fill(false, ARRAY[count]), u_once => array_fill(NULL::text, ARRAY[count]),
      u_schedule => array_fill(NULL::text, ARRAY[count]), u_slot => array_fill(NULL::bigint, ARRAY[count]),
      u_next => array_fill(NULL::bigint, ARRAY[count]),
      j_unit => '{}', j_id => '{}', j_queue => '{}', j_name => '{}', j_payload => '{}', j_priority => '{}', j_due => '{}',
      j_run => '{}', j_scope => '{}', j_opts => '{}', j_stream => '{}', j_head => '{}', j_rate_key => '{}',
      e_unit => e_unit, e_job => array_fill(NULL::integer, ARRAY[cardinality(e_unit)]), e_stream => e_stream,
      e_kind => array_fill(NULL::text, ARRAY[cardinality(e_unit)]), e_body => e_body,
      m_unit => '{}', m_scope => '{}', m_name => '{}', m_value => '{}', t_unit => '{}', t_id => '{}', k_unit => '{}',
      k_id => '{}', w_unit => '{}', w_opens => '{}', w_id => '{}', w_run => '{}', w_scope => '{}', w_kind => '{}',
      w_state => '{}', w_lenient => '{}', w_due => '{}', w_job => '{}', w_topic => '{}', w_key => '{}', w_body => '{}',
      s_unit => '{}', s_key => '{}', s_value => '{}', s_expect => '{}', s_expires => '{}',
      worker => worker, lease_ms => lease_ms, secret => secret, most => most, q_name => q_name, q_limit => q_limit,
      q_max_active => array_fill(NULL::integer, ARRAY[cardinality(q_name)]),
      q_rate => array_fill(NULL::integer, ARRAY[cardinality(q_name)]),
      q_span => array_fill(NULL::bigint, ARRAY[cardinality(q_name)]),
      q_per_key => array_fill(NULL::boolean, ARRAY[cardinality(q_name)])) AS t;
    RETURN;
  END IF;

  IF count > 0 THEN
    -- Those whose lease is not theirs any more are not found.
    WITH moved AS (
      UPDATE penstock.jobs AS k SET state = 4, finished = now, unit = u.id, result = u.result, lease = NULL
      FROM unnest(u_pk, u_id, u_attempt, u_token, u_result) WITH ORDINALITY AS u (pk, id, attempt, token, result, ord)
      WHERE k.pk = u.pk AND k.state = 2 AND k.attempt = u.attempt AND k.token = u.token RETURNING u.ord)
    SELECT array_agg(m.ord) INTO done FROM moved AS m;
    IF cardinality(done) = count THEN
      verdicts := array_fill(0::smallint, ARRAY[count]);
    ELSE
      -- A unit that was applied before is what its job remembers.
      verdicts := ARRAY(
        SELECT CASE WHEN u.ord = ANY (done) THEN 0
                    WHEN (SELECT k.unit FROM penstock.jobs AS k WHERE k.pk = u.pk) = u.id THEN 1 ELSE 2 END
        FROM unnest(u_pk, u_id) WITH ORDINALITY AS u (pk, id, ord) ORDER BY u.ord);
      SELECT coalesce(array_agg(e.stream ORDER BY e.ord), '{}'), coalesce(array_agg(e.body ORDER BY e.ord), '{}')
      INTO e_stream, e_body FROM unnest(e_unit, e_stream, e_body) WITH ORDINALITY AS e (unit, stream, body, ord)
      WHERE verdicts[e.unit] = 0;
    END IF;
  END IF;

  IF waiting > 0 THEN
    WITH picked AS (
      SELECT p.pk, w.ord
      FROM unnest(q_name, q_limit) WITH ORDINALITY AS w (name, room, ord), LATERAL (
        SELECT j.pk FROM penstock.jobs AS j WHERE j.queue = w.name AND j.state = 0 AND j.run IS NULL
        ORDER BY j.priority, j.pk
        LIMIT (SELECT CASE WHEN k.paused THEN 0 ELSE w.room END FROM penstock.queues AS k WHERE k.name = w.name)
        FOR UPDATE SKIP LOCKED) AS p LIMIT most),
    moved AS (
      UPDATE penstock.jobs AS j SET state = 2, attempt = j.attempt + 1, token = secret || '.' || j.pk, lease = now + lease_ms
      FROM picked AS x WHERE j.pk = x.pk
      RETURNING x.ord, j.priority, j.pk, j.id, j.queue, j.name, j.payload, j.opts, coalesce(j.scope, j.id) AS scope, j.attempt,
                j.failures, j.crashes, j.attempt > 1 OR j.scope IS NOT NULL AS recalls, j.started_stream, j.started_head)
    SELECT array_agg(g.pk), array_agg(g.id), array_agg(g.queue), array_agg(g.name), array_agg(g.payload), array_agg(g.opts),
           array_agg(g.scope), array_agg(g.attempt), array_agg(g.failures), array_agg(g.crashes), array_agg(NULL::text),
           array_agg(0::bigint), array_agg(NULL::bytea), array_agg(g.started_stream), bool_or(g.recalls),
           array_agg(g.started_stream) FILTER (WHERE g.started_stream IS NOT NULL),
           array_agg((g.started_head || '"attempt":' || g.attempt || ',"worker":"' || worker || '"}}')::json)
             FILTER (WHERE g.started_stream IS NOT NULL)
    INTO claims, c_id, c_queue, c_name, c_payload, c_opts, c_scope, c_attempt, c_failures, c_crashes, c_run, c_version,
         c_record, c_stream, recalls, started, heads
    FROM (SELECT * FROM moved AS m ORDER BY m.ord, m.priority, m.pk) AS g;
    next_due := least(next_due, CASE WHEN claims IS NOT NULL THEN now + lease_ms END);
    e_stream := e_stream || started;
    e_body := e_body || heads;
    IF recalls THEN
      SELECT array_agg(m.scope), array_agg(m.name), array_agg(m.value) INTO memo_scopes, memo_names, memo_values
      FROM (SELECT DISTINCT s.scope FROM unnest(c_scope) AS s (scope)) AS w JOIN penstock.memos AS m ON m.scope = w.scope;
    END IF;
  END IF;
  IF coalesce(cardinality(claims), 0) < most THEN
    emptied := ARRAY(SELECT w.name FROM unnest(q_name, q_limit) AS w (name, room)
                     WHERE w.room > cardinality(array_positions(c_queue, w.name)) OR c_queue IS NULL);
  END IF;

  IF e_stream[1] = ALL (e_stream) AND cardinality(e_stream) > 0 THEN
    -- As `append` does it, which see.
    SELECT k.sid, k.seq, greatest(k.ms, now), pg_current_xact_id()::text::bigint INTO home, base, at, top
    FROM penstock.streams AS k WHERE k.name = e_stream[1] FOR UPDATE;
  END IF;
  IF home IS NULL THEN
    IF cardinality(e_stream) > 0 THEN
      SELECT a.homes, a.ranks, a.bases, a.times INTO homes, ranks, bases, times
      FROM penstock.append(now, e_stream, array_fill(NULL::text, ARRAY[cardinality(e_stream)]), e_body, false, '{}') AS a;
    END IF;
    RETURN;
  END IF;
  BEGIN
    UPDATE penstock.streams AS s SET seq = base + cardinality(e_stream), ms = at WHERE s.sid = home
    RETURNING s.xmin::text::bigint INTO part;
    stamp := top - (top & 4294967295) + part + CASE WHEN (top & 4294967295) > part THEN 4294967296 ELSE 0 END;
    INSERT INTO penstock.events (sid, seq, ms, stamp, n, body)
    SELECT home, base + x.n, at, stamp, x.n, x.body FROM unnest(e_body) WITH ORDINALITY AS x (body, n);
  EXCEPTION WHEN assert_failure THEN
    RAISE;  -- none is: the clause is what makes a subtransaction of the block
  END;
  -- Of the units' own events alone: nobody asks for the places of the others.
  homes := array_fill(1, ARRAY[cardinality(e_unit)]);
  ranks := homes;
  FOR i IN 2..cardinality(e_unit) LOOP
    ranks[i] := i;
  END LOOP;
  bases := ARRAY[base];
  times := ARRAY[at];
END $$;
