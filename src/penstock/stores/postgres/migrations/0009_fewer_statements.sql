-- The same in fewer statements. What a call costs with little to do is how many statements it runs, at fifteen and more
-- microseconds each before they do anything: rows are read as they are locked, all queues are looked at at once, jobs are
-- judged and taken by one statement, and events that go to one stream, as those of plain jobs do, are spared what sorts them.

DROP FUNCTION penstock.hand_out_any(
  bigint, bigint, text, integer, text[], integer[], integer[], integer[], bigint[], boolean[]);

CREATE OR REPLACE FUNCTION penstock.hand_out(
  now bigint, lease_ms bigint, secret text, most integer,
  q_name text[], q_limit integer[], q_max_active integer[], q_rate integer[], q_span bigint[], q_per_key boolean[],
  OUT taken bigint[], OUT emptied text[], OUT next_due bigint
) LANGUAGE plpgsql AS $$
DECLARE
  q text;
  paused boolean[];
  waiting boolean[];
  first_due bigint[];
  first_lease bigint[];
  held_until bigint[];
  overdue boolean;
  room integer;
  page integer;
  seen integer;
  pks bigint[];
  acts smallint[];
  keys text[];
  dues bigint[];
  ends bigint;
  limited boolean := array_remove(q_max_active, NULL) <> '{}' OR array_remove(q_rate, NULL) <> '{}';
BEGIN
  taken := '{}';
  emptied := '{}';
  -- Limits hold for all workers together: those who count take turns.
  IF limited THEN
    PERFORM 1 FROM penstock.queues WHERE name IN (
      SELECT w.name FROM unnest(q_name, q_max_active, q_rate) AS w (name, active, rate)
      WHERE w.active IS NOT NULL OR w.rate IS NOT NULL) ORDER BY name FOR UPDATE;
  END IF;
  -- LIMIT instead of EXISTS, which might be answered by reading all that waits.
  SELECT array_agg((SELECT k.paused FROM penstock.queues AS k WHERE k.name = w.name)),
         array_agg((SELECT true FROM penstock.jobs AS j WHERE j.queue = w.name AND j.state = 0 LIMIT 1)),
         array_agg((SELECT min(j.due) FROM penstock.jobs AS j WHERE j.queue = w.name AND j.state = 1)),
         array_agg((SELECT min(j.lease) FROM penstock.jobs AS j WHERE j.queue = w.name AND j.state = 2)),
         array_agg((SELECT h.until FROM penstock.holds AS h WHERE h.queue = w.name AND h.until > now))
  INTO paused, waiting, first_due, first_lease, held_until FROM unnest(q_name) AS w (name);
  FOR i IN 1..cardinality(q_name) LOOP
    next_due := least(next_due, held_until[i]);
    CONTINUE WHEN cardinality(taken) >= most OR coalesce(paused[i], true);
    q := q_name[i];
    overdue := first_due[i] <= now OR first_lease[i] <= now;
    IF overdue THEN
      UPDATE penstock.jobs SET state = 0 WHERE pk = ANY (ARRAY(
        SELECT pk FROM penstock.jobs WHERE queue = q AND state = 1 AND due <= now
        ORDER BY due LIMIT 1000 FOR UPDATE SKIP LOCKED));
      UPDATE penstock.jobs SET state = 0, crashes = crashes + 1, lease = NULL WHERE pk = ANY (ARRAY(
        SELECT pk FROM penstock.jobs WHERE queue = q AND state = 2 AND lease <= now
        ORDER BY lease LIMIT 1000 FOR UPDATE SKIP LOCKED));
      waiting[i] := true;
      first_due[i] := (SELECT min(j.due) FROM penstock.jobs AS j WHERE j.queue = q AND j.state = 1);
      first_lease[i] := (SELECT min(j.lease) FROM penstock.jobs AS j WHERE j.queue = q AND j.state = 2);
    END IF;
    next_due := least(next_due, first_due[i], first_lease[i]);
    room := CASE WHEN held_until[i] IS NULL THEN least(q_limit[i], most - cardinality(taken)) ELSE 0 END;
    IF q_max_active[i] IS NOT NULL THEN
      room := least(room, q_max_active[i] - (SELECT count(*) FROM penstock.jobs WHERE queue = q AND state = 2));
    END IF;
    LOOP
      page := room;
      IF q_rate[i] IS NOT NULL AND q_per_key[i] THEN
        page := CASE WHEN room > 0 THEN 100 ELSE 0 END;
      ELSIF q_rate[i] IS NOT NULL THEN
        page := least(room, q_rate[i] - coalesce((
          SELECT used FROM penstock.rates
          WHERE queue = q AND key = '' AND now < until AND until <= now + 2 * q_span[i]), 0));
      END IF;
      EXIT WHEN page <= 0;
      IF waiting[i] IS NULL THEN
        emptied := emptied || q;
        EXIT;
      END IF;
      -- A run that is closed or gone drops its jobs, one that is paused holds them.
      IF q_rate[i] IS NULL THEN
        WITH picked AS (
          SELECT j.pk, j.run FROM penstock.jobs AS j WHERE j.queue = q AND j.state = 0
          ORDER BY j.priority, j.pk LIMIT page FOR UPDATE SKIP LOCKED),
        moved AS (
          UPDATE penstock.jobs AS j SET
            state = x.act,
            attempt = CASE WHEN x.act = 2 THEN j.attempt + 1 ELSE j.attempt END,
            token = CASE WHEN x.act = 2 THEN secret || '.' || j.pk ELSE j.token END,
            lease = CASE WHEN x.act = 2 THEN now + lease_ms END,
            finished = CASE WHEN x.act = 6 THEN now ELSE j.finished END
          FROM (SELECT p.pk, (CASE WHEN p.run IS NULL THEN 2 WHEN r.id IS NULL OR r.closed THEN 6
                                   WHEN r.paused THEN -1 ELSE 2 END)::smallint AS act
                FROM picked AS p LEFT JOIN penstock.runs AS r ON r.id = p.run) AS x
          WHERE j.pk = x.pk RETURNING j.priority, j.pk, x.act)
        SELECT count(*), coalesce(array_agg(m.pk ORDER BY m.priority, m.pk) FILTER (WHERE m.act = 2), '{}')
        INTO seen, pks FROM moved AS m;
        taken := taken || pks;
        room := room - cardinality(pks);
        IF seen < page THEN
          emptied := emptied || q;
          EXIT;
        END IF;
        CONTINUE;
      END IF;
      SELECT array_agg(x.pk), array_agg(x.act), array_agg(x.rate_key), array_agg(NULL::bigint)
      INTO pks, acts, keys, dues FROM (
        SELECT j.pk, j.rate_key, (CASE WHEN j.run IS NULL THEN 2 WHEN r.id IS NULL OR r.closed THEN 6
                                       WHEN r.paused THEN -1 ELSE 2 END)::smallint AS act
        FROM (SELECT pk, run, rate_key, priority FROM penstock.jobs WHERE queue = q AND state = 0
              ORDER BY priority, pk LIMIT page FOR UPDATE SKIP LOCKED) AS j
        LEFT JOIN penstock.runs AS r ON r.id = j.run
        ORDER BY j.priority, j.pk) AS x;
      IF pks IS NULL THEN
        emptied := emptied || q;
        EXIT;
      END IF;
      FOR k IN 1..cardinality(pks) LOOP
        CONTINUE WHEN acts[k] <> 2;
        IF room <= 0 THEN
          acts[k] := 0;  -- it stays in line
          CONTINUE;
        END IF;
        ends := penstock.spend(now, q, CASE WHEN q_per_key[i] THEN coalesce(keys[k], '') ELSE '' END, q_rate[i], q_span[i]);
        IF ends IS NULL THEN
          room := room - 1;
        ELSE
          acts[k] := 1;
          dues[k] := ends;
          next_due := least(next_due, ends);
        END IF;
      END LOOP;
      UPDATE penstock.jobs AS j SET
        state = x.act,
        attempt = CASE WHEN x.act = 2 THEN j.attempt + 1 ELSE j.attempt END,
        token = CASE WHEN x.act = 2 THEN secret || '.' || j.pk ELSE j.token END,
        lease = CASE WHEN x.act = 2 THEN now + lease_ms END,
        due = coalesce(x.due, j.due),
        finished = CASE WHEN x.act = 6 THEN now ELSE j.finished END
      FROM unnest(pks, acts, dues) AS x (pk, act, due) WHERE j.pk = x.pk AND x.act <> 0;
      IF NOT (2 = ALL (acts)) THEN
        pks := ARRAY(SELECT x.pk FROM unnest(pks, acts) WITH ORDINALITY AS x (pk, act, ord) WHERE x.act = 2 ORDER BY x.ord);
      END IF;
      taken := taken || pks;
      IF cardinality(acts) < page THEN
        emptied := CASE WHEN 0 = ANY (acts) THEN emptied ELSE emptied || q END;
        EXIT;
      END IF;
    END LOOP;
    IF q_rate[i] IS NOT NULL AND NOT q_per_key[i] THEN
      next_due := least(next_due, (
        SELECT until FROM penstock.rates
        WHERE queue = q AND key = '' AND now < until AND until <= now + 2 * q_span[i] AND used >= q_rate[i]));
    END IF;
  END LOOP;
  IF cardinality(taken) > 0 THEN
    next_due := least(next_due, now + lease_ms);
  END IF;
END $$;

-- Appends events after all other locks were had, those of the streams in the order of their names. An event's place is
-- what its stream had before (`bases`) and how many of this call come up to it (`ranks`); `homes` says which stream.
-- `claims` are jobs of runs that are being handed out: if a run was closed or paused since, they are given back as `dropped`,
-- and nothing is appended.
--
-- For stamps see the decisions: the number of a subtransaction that begins once the streams are locked.
DROP FUNCTION penstock.append(bigint, text[], text[], json[], boolean, text, bigint[]);
CREATE FUNCTION penstock.append(
  now bigint, x_stream text[], x_kind text[], x_body json[], tells boolean, claims bigint[],
  OUT homes integer[], OUT ranks integer[], OUT bases bigint[], OUT times bigint[], OUT told integer, OUT dropped bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
  total integer := cardinality(x_stream);
  alone boolean := x_stream[1] = ALL (x_stream);
  grown text[];
  many bigint[];
  sids bigint[];
  home bigint;
  base bigint;
  at bigint;
  part bigint;
  top bigint;
  stamp bigint;
BEGIN
  told := 0;
  IF alone THEN
    SELECT k.sid, k.seq, k.ms INTO home, base, at FROM penstock.streams AS k WHERE k.name = x_stream[1] FOR UPDATE;
    base := coalesce(base, 0);
    at := greatest(at, now);
    homes := array_fill(1, ARRAY[total]);
    ranks := homes;
    FOR i IN 2..total LOOP
      ranks[i] := i;
    END LOOP;
    bases := ARRAY[base];
    times := ARRAY[at];
  ELSE
    SELECT array_agg(x.home ORDER BY x.n), array_agg(x.rank ORDER BY x.n) INTO homes, ranks FROM (
      SELECT e.n, dense_rank() OVER (ORDER BY e.stream COLLATE "C")::integer AS home,
             row_number() OVER (PARTITION BY e.stream COLLATE "C" ORDER BY e.n)::integer AS rank
      FROM unnest(x_stream) WITH ORDINALITY AS e (stream, n)) AS x;
    SELECT array_agg(g.stream), array_agg(g.many) INTO grown, many FROM (
      SELECT e.stream, count(*) AS many FROM unnest(x_stream) AS e (stream)
      GROUP BY e.stream ORDER BY e.stream COLLATE "C") AS g;
    SELECT array_agg(s.sid), array_agg(s.seq), array_agg(greatest(s.ms, now)) INTO sids, bases, times
    FROM (SELECT k.sid, k.seq, k.ms FROM penstock.streams AS k WHERE k.name = ANY (grown) ORDER BY k.name FOR UPDATE) AS s;
  END IF;
  IF cardinality(claims) > 0 THEN
    -- A run may have been closed or paused since its job was taken. Its last event is in the stream by now, and nothing is
    -- to come after it.
    WITH late AS (
      UPDATE penstock.jobs AS j SET
        state = CASE WHEN r.id IS NULL OR r.closed THEN 6 ELSE -1 END,
        finished = CASE WHEN r.id IS NULL OR r.closed THEN now END,
        attempt = j.attempt - 1, lease = NULL
      FROM penstock.jobs AS c LEFT JOIN penstock.runs AS r ON r.id = c.run
      WHERE c.pk = ANY (claims) AND j.pk = c.pk AND c.run IS NOT NULL AND (r.id IS NULL OR r.closed OR r.paused)
      RETURNING j.pk)
    SELECT array_agg(pk) INTO dropped FROM late;
    IF dropped IS NOT NULL THEN
      RETURN;
    END IF;
  END IF;
  IF total = 0 THEN
    RETURN;
  END IF;
  IF NOT alone AND cardinality(sids) IS DISTINCT FROM cardinality(grown) THEN
    SELECT array_agg(s.sid), array_agg(coalesce(s.seq, 0)), array_agg(greatest(s.ms, now)) INTO sids, bases, times
    FROM (SELECT k.sid, k.seq, k.ms FROM unnest(grown) WITH ORDINALITY AS g (name, ord)
          LEFT JOIN penstock.streams AS k ON k.name = g.name ORDER BY g.ord) AS s;
  END IF;
  top := pg_current_xact_id()::text::bigint;
  BEGIN
    IF alone THEN
      IF home IS NULL THEN
        INSERT INTO penstock.streams AS s (name, seq, ms) VALUES (x_stream[1], total, at)
        RETURNING s.sid, s.xmin::text::bigint INTO home, part;
      ELSE
        UPDATE penstock.streams AS s SET seq = base + total, ms = at WHERE s.sid = home
        RETURNING s.xmin::text::bigint INTO part;
      END IF;
    ELSE
      IF array_position(sids, NULL) IS NOT NULL THEN
        WITH born AS (
          INSERT INTO penstock.streams (name, seq, ms)
          SELECT g.name, g.many, g.ms FROM unnest(grown, many, times, sids) WITH ORDINALITY AS g (name, many, ms, sid, ord)
          WHERE g.sid IS NULL ORDER BY g.ord RETURNING xmin)
        SELECT max(b.xmin::text::bigint) INTO part FROM born AS b;
        sids := ARRAY(SELECT k.sid FROM unnest(grown) WITH ORDINALITY AS g (name, ord)
                      JOIN penstock.streams AS k ON k.name = g.name ORDER BY g.ord);
      END IF;
      WITH moved AS (
        UPDATE penstock.streams AS s SET seq = g.base + g.many, ms = g.ms
        FROM unnest(sids, bases, many, times) AS g (sid, base, many, ms) WHERE s.sid = g.sid AND g.base > 0
        RETURNING s.xmin)
      SELECT coalesce(max(m.xmin::text::bigint), part) INTO part FROM moved AS m;
    END IF;
    stamp := top - (top & 4294967295) + part;
    IF stamp < top THEN
      stamp := stamp + 4294967296;
    END IF;
    IF alone THEN
      INSERT INTO penstock.events (sid, seq, ms, stamp, n, kind, body)
      SELECT home, base + x.n, at, stamp, x.n, x.kind, x.body
      FROM unnest(x_kind, x_body) WITH ORDINALITY AS x (kind, body, n);
    ELSE
      INSERT INTO penstock.events (sid, seq, ms, stamp, n, kind, body)
      SELECT sids[x.home], bases[x.home] + x.rank, times[x.home], stamp, x.n, x.kind, x.body
      FROM unnest(homes, ranks, x_kind, x_body) WITH ORDINALITY AS x (home, rank, kind, body, n);
    END IF;
  EXCEPTION WHEN assert_failure THEN
    RAISE;  -- none is: the clause is what makes a subtransaction of the block
  END;
  IF tells THEN
    -- A gate that is opened later looks back by itself; see the locks of kinds.
    INSERT INTO penstock.jobs (pk, id, queue, name, state, priority, due, created, opts, payload)
    SELECT nextval('penstock.jobs_pk'), format('told.%s.%s', stamp, a.n), 'penstock-events', 'deliver', 0, 0, 0, now,
           '{}'::bytea, format('{"stream":%s,"id":"%s-%s","cursor":"%s.%s","body":%s}', to_json(a.stream), times[a.home],
                               bases[a.home] + a.rank, stamp, a.n, a.body)::json
    FROM (
      SELECT x.* FROM unnest(x_stream, homes, ranks, x_kind, x_body) WITH ORDINALITY
        AS x (stream, home, rank, kind, body, n)
      WHERE x.kind IS NOT NULL AND EXISTS (
        SELECT 1 FROM penstock.waits AS g WHERE g.topic = x.kind AND g.topic IS NOT NULL AND g.state = 'pending')
      ORDER BY x.n) AS a;
    GET DIAGNOSTICS told = ROW_COUNT;
    IF told > 0 THEN
      INSERT INTO penstock.queues (name) VALUES ('penstock-events') ON CONFLICT (name) DO NOTHING;
    END IF;
  END IF;
END $$;

CREATE OR REPLACE FUNCTION penstock.transact(
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
  progresses boolean := false;
  body bytea;
  recalls boolean;
  held boolean;  -- whether a claim is of a run
  given record;
  said record;
  started text[];
  heads json[];
  x_stream text[];
  x_kind text[];
  x_body json[];
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
    -- The ids come in order: if all are there, what is locked is what is wanted, one for one.
    SELECT array_agg(h.version), array_agg(h.closed), array_agg(h.paused), array_agg(h.unit), array_agg(true)
    INTO r_version, r_closed, r_paused, r_unit, r_there
    FROM (SELECT g.version, g.closed, g.paused, g.unit FROM penstock.runs AS g
          WHERE g.id = ANY (r_ids) ORDER BY g.id FOR UPDATE) AS h;
    IF cardinality(r_there) IS DISTINCT FROM cardinality(r_ids) THEN
      SELECT array_agg(h.version), array_agg(h.closed), array_agg(h.paused), array_agg(h.unit), array_agg(h.id IS NOT NULL)
      INTO r_version, r_closed, r_paused, r_unit, r_there
      FROM (SELECT g.* FROM unnest(r_ids) WITH ORDINALITY AS k (id, ord) LEFT JOIN penstock.runs AS g ON g.id = k.id
            ORDER BY k.ord) AS h;
    END IF;
    r_by := array_fill(NULL::integer, ARRAY[cardinality(r_ids)]);
  END IF;
  IF cardinality(handles) > 0 THEN
    SELECT array_agg(h.state), array_agg(h.attempt), array_agg(h.token), array_agg(h.unit)
    INTO f_state, f_attempt, f_token, f_unit
    FROM (SELECT g.state, g.attempt, g.token, g.unit FROM penstock.jobs AS g
          WHERE g.pk = ANY (handles) ORDER BY g.pk FOR UPDATE) AS h;
    IF cardinality(f_state) IS DISTINCT FROM cardinality(handles) THEN
      SELECT array_agg(h.state), array_agg(h.attempt), array_agg(h.token), array_agg(h.unit)
      INTO f_state, f_attempt, f_token, f_unit
      FROM (SELECT g.state, g.attempt, g.token, g.unit FROM unnest(handles) WITH ORDINALITY AS k (pk, ord)
            LEFT JOIN penstock.jobs AS g ON g.pk = k.pk ORDER BY k.ord) AS h;
    END IF;
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
      progresses := progresses OR u_progress[i] IS NOT NULL;
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

  IF worker IS NOT NULL THEN
    given := penstock.hand_out(now, lease_ms, secret, most, q_name, q_limit, q_max_active, q_rate, q_span, q_per_key);
    claims := given.taken;
    emptied := given.emptied;
    next_due := given.next_due;
  END IF;
  IF 0 <> ANY (verdicts) OR cardinality(added) < cardinality(j_id) THEN
    SELECT coalesce(array_agg(e.stream ORDER BY e.ord), '{}'), coalesce(array_agg(e.kind ORDER BY e.ord), '{}'),
           coalesce(array_agg(e.body ORDER BY e.ord), '{}')
    INTO e_stream, e_kind, e_body
    FROM unnest(e_unit, e_job, e_stream, e_kind, e_body) WITH ORDINALITY AS e (unit, job, stream, kind, body, ord)
    WHERE verdicts[e.unit] = 0 AND (e.job IS NULL OR e.job = ANY (added));
  END IF;
  LOOP
    x_stream := e_stream;
    x_kind := e_kind;
    x_body := e_body;
    late := '{}';
    IF cardinality(claims) > 0 THEN
      SELECT array_agg(g.id), array_agg(g.queue), array_agg(g.name), array_agg(g.payload), array_agg(g.opts),
             array_agg(coalesce(g.scope, g.id)), array_agg(g.attempt), array_agg(g.failures), array_agg(g.crashes),
             array_agg(g.run), array_agg(0::bigint), array_agg(NULL::bytea), array_agg(g.started_stream),
             bool_or(g.attempt > 1 OR g.scope IS NOT NULL), bool_or(g.run IS NOT NULL),
             array_agg(g.started_stream) FILTER (WHERE g.started_stream IS NOT NULL),
             array_agg((g.started_head || '"attempt":' || g.attempt || ',"worker":"' || worker || '"}}')::json)
               FILTER (WHERE g.started_stream IS NOT NULL)
      INTO c_id, c_queue, c_name, c_payload, c_opts, c_scope, c_attempt, c_failures, c_crashes, c_run, c_version, c_record,
           c_stream, recalls, held, started, heads
      FROM (
        SELECT k.* FROM unnest(claims) WITH ORDINALITY AS c (pk, ord) JOIN penstock.jobs AS k ON k.pk = c.pk
        ORDER BY c.ord) AS g;
      IF started IS NOT NULL THEN
        x_stream := x_stream || started;
        x_kind := x_kind || array_fill(NULL::text, ARRAY[cardinality(started)]);
        x_body := x_body || heads;
      END IF;
      IF held THEN
        late := claims;
      END IF;
    END IF;
    EXIT WHEN cardinality(x_stream) = 0 AND cardinality(late) = 0;
    said := penstock.append(now, x_stream, x_kind, x_body, cardinality(kinds) > 0, late);
    homes := said.homes;
    ranks := said.ranks;
    bases := said.bases;
    times := said.times;
    told := said.told;
    late := said.dropped;
    EXIT WHEN late IS NULL;
    -- Seldom: once more, without them.
    claims := ARRAY(SELECT c.pk FROM unnest(claims) WITH ORDINALITY AS c (pk, ord) WHERE c.pk <> ALL (late) ORDER BY c.ord);
  END LOOP;
  IF cardinality(claims) > 0 AND held THEN
    SELECT array_agg(h.version), array_agg(h.record) INTO c_version, c_record
    FROM (SELECT coalesce(o.version, 0) AS version, o.record
          FROM unnest(c_run) WITH ORDINALITY AS c (run, ord) LEFT JOIN penstock.runs AS o ON o.id = c.run
          ORDER BY c.ord) AS h;
  END IF;
  IF cardinality(claims) > 0 AND recalls THEN
    SELECT array_agg(m.scope), array_agg(m.name), array_agg(m.value) INTO memo_scopes, memo_names, memo_values
    FROM (SELECT DISTINCT coalesce(k.scope, k.id) AS scope FROM penstock.jobs AS k
          WHERE k.pk = ANY (claims) AND (k.attempt > 1 OR k.scope IS NOT NULL)) AS w
    JOIN penstock.memos AS m ON m.scope = w.scope;
  END IF;
END $$;
