-- One call: units in order, then the work asked for, then all events. Its settings keep plans that were made for empty
-- tables from reading full ones.

CREATE FUNCTION penstock.transact(
  given_now bigint, kinds bigint[], kinds_opened boolean[],
  stretches integer[], r_ids text[], handles bigint[],
  u_id text[], u_remember boolean[], u_job integer[], u_attempt integer[], u_token text[], u_guard boolean[],
  u_run integer[], u_run_id text[], u_expect bigint[], u_after text[], u_flow text[], u_status text[], u_flags integer[],
  u_record bytea[],
  u_end smallint[], u_failed smallint[], u_due bigint[], u_result json[], u_error json[], u_progress json[],
  u_rest boolean[], u_once text[], u_schedule text[], u_slot bigint[], u_next bigint[],
  j_unit integer[], j_id text[], j_queue text[], j_name text[], j_payload json[], j_priority bigint[], j_due bigint[],
  j_run text[], j_scope text[], j_opts bytea[], j_stream text[], j_head text[], j_rate_key text[],
  e_unit integer[], e_job integer[], e_stream text[], e_kind text[], e_body json[],
  m_unit integer[], m_scope text[], m_name text[], m_value bytea[],
  t_unit integer[], t_id text[], k_unit integer[], k_id text[],
  w_unit integer[], w_opens boolean[], w_id text[], w_run text[], w_scope text[], w_kind text[], w_state text[],
  w_lenient boolean[], w_due bigint[], w_job text[], w_topic text[], w_key text[], w_body bytea[],
  s_unit integer[], s_key text[], s_value bytea[], s_expect bigint[], s_expires bigint[],
  worker text, lease_ms bigint, secret text, most integer,
  q_name text[], q_limit integer[], q_max_active integer[], q_rate integer[], q_span bigint[], q_per_key boolean[],
  -- Verdicts: 0 applied, 1 applied before, 2 fenced, 3 another version, 4 refused for `whys` and `whats`.
  OUT now bigint, OUT verdicts smallint[], OUT versions bigint[], OUT records bytea[], OUT whys text[], OUT whats text[],
  OUT added integer[], OUT homes integer[], OUT ranks integer[], OUT bases bigint[], OUT times bigint[], OUT told integer,
  OUT woken text[],
  OUT claims bigint[], OUT emptied text[], OUT next_due bigint,
  OUT c_id text[], OUT c_queue text[], OUT c_name text[], OUT c_payload json[], OUT c_opts bytea[], OUT c_scope text[],
  OUT c_attempt integer[], OUT c_failures integer[], OUT c_crashes integer[], OUT c_run text[], OUT c_version bigint[],
  OUT c_record bytea[], OUT c_stream text[], OUT memo_scopes text[], OUT memo_names text[], OUT memo_values bytea[]
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  count integer := cardinality(u_id);
  known text[];
  r_version bigint[];
  r_closed boolean[];
  r_paused boolean[];
  r_unit text[];
  r_there boolean[];
  r_by integer[];
  f_state smallint[];
  f_attempt integer[];
  f_token text[];
  f_unit text[];
  writes smallint[] := array_fill(0::smallint, ARRAY[count]);  -- of the run: 1 moves it, 2 begins it
  first integer := 1;
  last integer;
  j integer;
  r integer;
  more integer[];
  late bigint[];
  why text;
  what text;
  pks bigint[];
  progresses boolean := EXISTS (SELECT 1 FROM unnest(u_progress) AS p WHERE p IS NOT NULL);
  body bytea;
  recalls boolean;
BEGIN
  now := penstock.moment(given_now);
  added := '{}';
  woken := '{}';
  told := 0;
  claims := '{}';
  emptied := '{}';
  IF count > 0 THEN
    verdicts := array_fill(NULL::smallint, ARRAY[count]);
    -- Whoever opens a gate for a kind of event and whoever tells of such an event come one after the other: the second one
    -- sees the first. Before all other locks, and in order.
    FOR i IN 1..cardinality(kinds) LOOP
      IF kinds_opened[i] THEN
        PERFORM pg_advisory_xact_lock(kinds[i]);
      ELSE
        PERFORM pg_advisory_xact_lock_shared(kinds[i]);
      END IF;
    END LOOP;
    IF true = ANY (u_remember) THEN
      known := ARRAY(SELECT id FROM penstock.units WHERE id = ANY (u_id));
    END IF;
  END IF;
  IF cardinality(r_ids) > 0 THEN
    PERFORM 1 FROM penstock.runs WHERE id = ANY (r_ids) ORDER BY id FOR UPDATE;
    SELECT array_agg(h.version), array_agg(h.closed), array_agg(h.paused), array_agg(h.unit), array_agg(h.id IS NOT NULL),
           array_agg(NULL::integer)
    INTO r_version, r_closed, r_paused, r_unit, r_there, r_by
    FROM (SELECT g.* FROM unnest(r_ids) WITH ORDINALITY AS k (id, ord) LEFT JOIN penstock.runs AS g ON g.id = k.id
          ORDER BY k.ord) AS h;
  END IF;
  IF cardinality(handles) > 0 THEN
    PERFORM 1 FROM penstock.jobs WHERE pk = ANY (handles) ORDER BY pk FOR UPDATE;
    SELECT array_agg(h.state), array_agg(h.attempt), array_agg(h.token), array_agg(h.unit)
    INTO f_state, f_attempt, f_token, f_unit
    FROM (SELECT g.state, g.attempt, g.token, g.unit FROM unnest(handles) WITH ORDINALITY AS k (pk, ord)
          LEFT JOIN penstock.jobs AS g ON g.pk = k.pk ORDER BY k.ord) AS h;
  END IF;
  IF cardinality(w_id) > 0 THEN
    PERFORM 1 FROM penstock.waits WHERE id = ANY (w_id) ORDER BY id FOR UPDATE;
  END IF;
  IF cardinality(s_key) > 0 THEN
    PERFORM 1 FROM penstock.states WHERE key = ANY (s_key) ORDER BY key FOR UPDATE;
  END IF;

  FOREACH last IN ARRAY stretches LOOP
    FOR i IN first..last LOOP
      IF u_remember[i] AND u_id[i] = ANY (known) THEN
        verdicts[i] := 1;
        CONTINUE;
      END IF;
      j := u_job[i];
      r := u_run[i];
      IF j IS NOT NULL THEN
        IF f_unit[j] = u_id[i] THEN
          verdicts[i] := 1;
          CONTINUE;
        END IF;
        -- A cancelled run's attempt may end, but nothing comes after the run's last event.
        IF f_state[j] IS DISTINCT FROM 2 OR f_token[j] <> u_token[i] OR f_attempt[j] <> u_attempt[i]
           OR (u_guard[i] AND coalesce(r_closed[r], true)) THEN
          verdicts[i] := 2;
          CONTINUE;
        END IF;
      END IF;
      IF u_expect[i] IS NOT NULL THEN
        IF r_unit[r] = u_id[i] THEN
          verdicts[i] := 1;
          CONTINUE;
        END IF;
        IF coalesce(r_version[r], 0) <> u_expect[i]
           OR (r_version[r] IS NOT NULL AND u_after[i] IS NOT NULL AND u_after[i] <> r_unit[r]) THEN
          verdicts[i] := 3;
          IF versions IS NULL THEN
            versions := array_fill(NULL::bigint, ARRAY[count]);
            records := array_fill(NULL::bytea, ARRAY[count]);
          END IF;
          versions[i] := coalesce(r_version[r], 0);
          IF r_by[r] IS NOT NULL THEN
            records[i] := u_record[r_by[r]];
          ELSE
            SELECT k.record INTO body FROM penstock.runs AS k WHERE k.id = r_ids[r];
            records[i] := body;
          END IF;
          CONTINUE;
        END IF;
      END IF;
      IF u_rest[i] THEN
        SELECT c.why, c.what INTO why, what FROM penstock.check_rest(
          i, now, u_once[i], u_schedule[i], u_slot[i], t_unit, t_id, w_unit, w_opens, w_id, w_lenient,
          s_unit, s_key, s_expect) AS c;
        IF why IS NOT NULL THEN
          verdicts[i] := 4;
          IF whys IS NULL THEN
            whys := array_fill(NULL::text, ARRAY[count]);
            whats := array_fill(NULL::text, ARRAY[count]);
          END IF;
          whys[i] := why;
          whats[i] := what;
          CONTINUE;
        END IF;
      END IF;

      verdicts[i] := 0;
      IF u_remember[i] THEN
        known := array_append(known, u_id[i]);
      END IF;
      IF u_expect[i] IS NOT NULL THEN
        IF r_by[r] >= first THEN
          writes[r_by[r]] := 0;
        END IF;
        writes[i] := CASE WHEN r_there[r] THEN 1 ELSE 2 END;
        r_by[r] := i;
        IF r_paused[r] AND u_flags[i] & 2 = 0 THEN
          WITH released AS (
            UPDATE penstock.jobs SET state = CASE WHEN due > now THEN 1 ELSE 0 END
            WHERE id > r_ids[r] || '.' AND id < r_ids[r] || '/' AND run = r_ids[r] AND state = -1 RETURNING queue)
          SELECT woken || array_agg(queue) INTO woken FROM released;
        END IF;
        r_version[r] := u_expect[i] + 1;
        r_closed[r] := u_flags[i] & 1 <> 0;
        r_paused[r] := u_flags[i] & 2 <> 0;
        r_unit[r] := u_id[i];
        IF r_closed[r] THEN
          UPDATE penstock.waits SET state = 'cancelled' WHERE run = r_ids[r] AND state = 'pending';
        END IF;
        IF u_flags[i] & 4 <> 0 THEN
          UPDATE penstock.jobs SET state = 6, finished = now, unit = u_id[i]
          WHERE id > r_ids[r] || '.' AND id < r_ids[r] || '/' AND run = r_ids[r] AND state IN (-1, 0, 1, 3);
        END IF;
      END IF;
      IF j IS NOT NULL AND u_end[i] IS NOT NULL THEN
        f_state[j] := u_end[i];
        f_unit[j] := u_id[i];
      END IF;
      IF u_rest[i] THEN
        DELETE FROM penstock.jobs WHERE id IN (SELECT t.id FROM unnest(t_unit, t_id) AS t (unit, id) WHERE t.unit = i)
          AND state IN (0, 1, 3, 5);
        WITH called AS (
          UPDATE penstock.jobs SET state = 0, due = 0
          WHERE id IN (SELECT k.id FROM unnest(k_unit, k_id) AS k (unit, id) WHERE k.unit = i) AND state IN (1, 3)
          RETURNING queue)
        SELECT woken || array_agg(queue) INTO woken FROM called;
        PERFORM penstock.write_waits(i, w_unit, w_opens, w_id, w_run, w_scope, w_kind, w_state, w_due, w_job, w_topic,
                                     w_key, w_body);
        PERFORM penstock.write_states(i, now, s_unit, s_key, s_value, s_expect, s_expires);
        IF u_schedule[i] IS NOT NULL THEN
          UPDATE penstock.schedules SET next = u_next[i], last = u_slot[i], fired = fired + 1 WHERE id = u_schedule[i];
        END IF;
        IF u_once[i] IS NOT NULL THEN
          INSERT INTO penstock.once (key, at) VALUES (u_once[i], now);
        END IF;
      END IF;
    END LOOP;

    IF 2 = ANY (writes) THEN
      INSERT INTO penstock.runs (id, version, flow, status, closed, paused, created, updated, unit, record)
      SELECT u.run, u.expect + 1, u.flow, u.status, u.flags & 1 <> 0, u.flags & 2 <> 0, now, now, u.id, u.record
      FROM unnest(u_run_id, u_id, u_expect, u_flow, u_status, u_flags, u_record, writes)
           WITH ORDINALITY AS u (run, id, expect, flow, status, flags, record, writes, ord)
      WHERE u.ord BETWEEN first AND last AND u.writes = 2 ORDER BY u.run;
      FOR i IN first..last LOOP
        IF writes[i] = 2 THEN
          r_there[u_run[i]] := true;
        END IF;
      END LOOP;
    END IF;
    IF 1 = ANY (writes) THEN
      UPDATE penstock.runs AS k SET version = u.expect + 1, status = u.status, closed = u.flags & 1 <> 0,
                           paused = u.flags & 2 <> 0, updated = now, unit = u.id, record = u.record
      FROM unnest(u_run_id, u_id, u_expect, u_status, u_flags, u_record, writes)
           WITH ORDINALITY AS u (run, id, expect, status, flags, record, writes, ord)
      WHERE u.ord BETWEEN first AND last AND u.writes = 1 AND k.id = u.run;
    END IF;
    IF cardinality(handles) > 0 THEN
      UPDATE penstock.jobs AS k SET
        state = CASE WHEN u.ends = 0 AND u.due > now THEN 1 ELSE u.ends END,
        due = coalesce(u.due, k.due),
        finished = CASE WHEN u.ends >= 4 THEN now END,
        unit = u.id, result = u.result, error = coalesce(u.error, k.error), failures = k.failures + u.failed, lease = NULL
      FROM unnest(u_job, u_id, u_end, u_failed, u_due, u_result, u_error, verdicts)
           WITH ORDINALITY AS u (job, id, ends, failed, due, result, error, verdict, ord)
      WHERE u.ord BETWEEN first AND last AND u.verdict = 0 AND u.ends IS NOT NULL AND k.pk = handles[u.job];
    END IF;
    IF progresses THEN
      UPDATE penstock.jobs AS k SET progress = u.progress
      FROM (SELECT DISTINCT ON (p.job) p.job, p.progress
            FROM unnest(u_job, u_progress, verdicts) WITH ORDINALITY AS p (job, progress, verdict, ord)
            WHERE p.ord BETWEEN first AND last AND p.verdict = 0 AND p.progress IS NOT NULL AND p.job IS NOT NULL
            ORDER BY p.job, p.ord DESC) AS u
      WHERE k.pk = handles[u.job];
    END IF;
    IF cardinality(j_id) > 0 THEN
      INSERT INTO penstock.queues (name)
      SELECT DISTINCT n.queue FROM unnest(j_unit, j_queue) AS n (unit, queue)
      WHERE n.unit BETWEEN first AND last AND verdicts[n.unit] = 0
        AND NOT EXISTS (SELECT 1 FROM penstock.queues AS q WHERE q.name = n.queue) ORDER BY 1
      ON CONFLICT (name) DO NOTHING;
      -- Numbers are given in order of arrival, rows are written in order of ids: two who add the same jobs wait for each
      -- other in the same order.
      more := ARRAY(SELECT n.ord FROM unnest(j_unit) WITH ORDINALITY AS n (unit, ord)
                    WHERE n.unit BETWEEN first AND last AND verdicts[n.unit] = 0 ORDER BY n.ord);
      pks := ARRAY(SELECT nextval('penstock.jobs_pk') FROM generate_series(1, cardinality(more)));
      WITH written AS (
        INSERT INTO penstock.jobs (pk, id, queue, name, state, priority, due, run, scope, rate_key, created, started_stream,
                                   started_head, opts, payload)
        SELECT n.pk, n.id, n.queue, n.name, CASE WHEN n.due > now THEN 1 ELSE 0 END, n.priority, n.due, n.run, n.scope,
               n.rate_key, now, n.stream, n.head, n.opts, n.payload
        FROM (SELECT pks[row_number() OVER (ORDER BY o.ord)] AS pk, o.*
              FROM unnest(j_unit, j_id, j_queue, j_name, j_payload, j_priority, j_due, j_run, j_scope, j_opts, j_stream, j_head,
                          j_rate_key) WITH ORDINALITY
                AS o (unit, id, queue, name, payload, priority, due, run, scope, opts, stream, head, rate_key, ord)
              WHERE o.unit BETWEEN first AND last AND verdicts[o.unit] = 0) AS n
        ORDER BY n.id COLLATE "C", n.pk
        ON CONFLICT (id) DO NOTHING RETURNING pk)
      SELECT array_agg(w.pk) INTO late FROM written AS w;
      IF coalesce(cardinality(late), 0) < cardinality(pks) THEN
        more := ARRAY(SELECT n.ord FROM unnest(more, pks) AS n (ord, pk) WHERE n.pk = ANY (late) ORDER BY n.ord);
      END IF;
      added := added || more;
    END IF;
    IF cardinality(m_unit) > 0 THEN
      INSERT INTO penstock.memos (scope, name, value)
      SELECT m.scope, m.name, m.value FROM unnest(m_unit, m_scope, m_name, m_value)
        WITH ORDINALITY AS m (unit, scope, name, value, ord)
      WHERE m.unit BETWEEN first AND last AND verdicts[m.unit] = 0 ORDER BY m.scope, m.name, m.ord
      ON CONFLICT (scope, name) DO NOTHING;
    END IF;
    first := last + 1;
  END LOOP;
  IF true = ANY (u_remember) THEN
    INSERT INTO penstock.units (id, at)
    SELECT u.id, now FROM unnest(u_id, u_remember, verdicts) AS u (id, remember, verdict)
    WHERE u.remember AND u.verdict = 0 ORDER BY u.id;
  END IF;

  late := NULL;
  IF worker IS NOT NULL THEN
    SELECT h.taken, h.emptied, h.next_due INTO claims, emptied, next_due
    FROM penstock.hand_out(now, lease_ms, secret, most, q_name, q_limit, q_max_active, q_rate, q_span, q_per_key) AS h;
  END IF;
  IF 0 <> ANY (verdicts) OR cardinality(added) < cardinality(j_id) THEN
    SELECT coalesce(array_agg(e.stream ORDER BY e.ord), '{}'), coalesce(array_agg(e.kind ORDER BY e.ord), '{}'),
           coalesce(array_agg(e.body ORDER BY e.ord), '{}')
    INTO e_stream, e_kind, e_body
    FROM unnest(e_unit, e_job, e_stream, e_kind, e_body) WITH ORDINALITY AS e (unit, job, stream, kind, body, ord)
    WHERE verdicts[e.unit] = 0 AND (e.job IS NULL OR e.job = ANY (added));
  END IF;
  IF cardinality(e_stream) > 0 OR cardinality(claims) > 0 THEN
    SELECT a.homes, a.ranks, a.bases, a.times, a.told, a.dropped INTO homes, ranks, bases, times, told, late
    FROM penstock.append(now, e_stream, e_kind, e_body, cardinality(kinds) > 0, worker, claims) AS a;
    IF late IS NOT NULL THEN
      claims := ARRAY(SELECT c.pk FROM unnest(claims) WITH ORDINALITY AS c (pk, ord)
                      WHERE c.pk <> ALL (late) ORDER BY c.ord);
    END IF;
  END IF;
  IF cardinality(claims) > 0 THEN
    SELECT array_agg(g.id), array_agg(g.queue), array_agg(g.name), array_agg(g.payload), array_agg(g.opts),
           array_agg(g.scope), array_agg(g.attempt), array_agg(g.failures), array_agg(g.crashes), array_agg(g.run),
           array_agg(g.version), array_agg(g.record), array_agg(g.started_stream), bool_or(g.recalls)
    INTO c_id, c_queue, c_name, c_payload, c_opts, c_scope, c_attempt, c_failures, c_crashes, c_run, c_version, c_record,
         c_stream, recalls
    FROM (
      SELECT k.id, k.queue, k.name, k.payload, k.opts, coalesce(k.scope, k.id) AS scope, k.attempt, k.failures, k.crashes,
             k.run, coalesce(o.version, 0) AS version, o.record, k.started_stream,
             k.attempt > 1 OR k.scope IS NOT NULL AS recalls
      FROM unnest(claims) WITH ORDINALITY AS c (pk, ord)
      JOIN penstock.jobs AS k ON k.pk = c.pk LEFT JOIN penstock.runs AS o ON o.id = k.run
      ORDER BY c.ord) AS g;
    IF recalls THEN
      SELECT array_agg(m.scope), array_agg(m.name), array_agg(m.value) INTO memo_scopes, memo_names, memo_values
    FROM (SELECT DISTINCT coalesce(k.scope, k.id) AS scope FROM penstock.jobs AS k
          WHERE k.pk = ANY (claims) AND (k.attempt > 1 OR k.scope IS NOT NULL)) AS w
    JOIN penstock.memos AS m ON m.scope = w.scope;
    END IF;
  END IF;
END $$;

-- Extends leases; gives the places of those that are lost or whose run is closed.
CREATE FUNCTION penstock.renew(given_now bigint, lease_ms bigint, pks bigint[], attempts integer[], tokens text[])
RETURNS integer[] LANGUAGE sql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
  WITH held AS (
    SELECT j.pk FROM penstock.jobs AS j WHERE j.pk = ANY (pks) ORDER BY j.pk FOR UPDATE),
  kept AS (
    UPDATE penstock.jobs AS j SET lease = penstock.moment(given_now) + lease_ms
    FROM unnest(pks, attempts, tokens) WITH ORDINALITY AS c (pk, attempt, token, ord) JOIN held AS h ON h.pk = c.pk
    WHERE j.pk = c.pk AND j.state = 2 AND j.attempt = c.attempt AND j.token = c.token
    RETURNING c.ord, j.run)
  SELECT ARRAY(
    SELECT c.ord::integer FROM generate_series(1, cardinality(pks)) AS c (ord)
    WHERE NOT EXISTS (
      SELECT 1 FROM kept AS k LEFT JOIN penstock.runs AS r ON r.id = k.run
      WHERE k.ord = c.ord AND (k.run IS NULL OR NOT r.closed)) ORDER BY c.ord)
$$;
