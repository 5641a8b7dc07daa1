-- Claiming: due jobs of each queue, by priority, within the limits.

-- The server's time, unless a test passes its own.
CREATE OR REPLACE FUNCTION penstock.now_ms(override bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(override, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

-- Takes one claim from a rate limit's window. Returns null if one was left, else the end of the window.
CREATE OR REPLACE FUNCTION penstock.use_rate(now bigint, in_queue text, of_key text, most integer, span bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  ends bigint;
BEGIN
  -- A transaction that waited for the row may read an earlier clock than the one that opened the window. If it is earlier by
  -- more than a window, the clock was set back.
  INSERT INTO penstock.rates AS r (queue, key, until, used) VALUES (in_queue, of_key, now + span, 1)
  ON CONFLICT (queue, key) DO UPDATE SET
    until = CASE WHEN now < r.until AND r.until <= now + 2 * span THEN r.until ELSE now + span END,
    used = CASE WHEN now < r.until AND r.until <= now + 2 * span THEN r.used + 1 ELSE 1 END
  WHERE NOT (now < r.until AND r.until <= now + 2 * span AND r.used >= most);
  IF FOUND THEN
    RETURN NULL;
  END IF;
  SELECT until INTO ends FROM penstock.rates WHERE queue = in_queue AND key = of_key;
  RETURN ends;
END $$;

-- Claims jobs of the wanted queues. Returns their keys in order, the queues that have no due job left, and when the next job
-- or lease is due.
CREATE OR REPLACE FUNCTION penstock.claim_jobs(
  now bigint, request penstock.claim_request, OUT taken bigint[], OUT drained text[], OUT next_due bigint
) LANGUAGE plpgsql AS $$
DECLARE
  q penstock.queue_demand;
  lease_end bigint := now + request.lease_ms;
  secret text := request.secret;
  paused boolean[];
  waiting boolean[];
  first_due bigint[];
  first_lease bigint[];
  held_until bigint[];
  i integer := 0;
  room integer;
  page integer;
  seen integer;
  pks bigint[];
  next_states smallint[];
  keys text[];
  dues bigint[];
  ends bigint;
  allowed bigint[];  -- null: any job
BEGIN
  taken := '{}';
  drained := '{}';
  IF request.is_limited THEN
    -- Limits hold for all workers: transactions that count wait for each other.
    PERFORM 1 FROM penstock.queues WHERE name IN (
      SELECT w.queue FROM unnest(request.queues) AS w
      WHERE w.max_active IS NOT NULL OR w.rate_max IS NOT NULL) ORDER BY name FOR UPDATE;
  END IF;
  -- LIMIT instead of EXISTS, which the planner might answer by reading every waiting job.
  SELECT array_agg((SELECT k.paused FROM penstock.queues AS k WHERE k.name = w.queue)),
         array_agg((SELECT true FROM penstock.jobs AS j WHERE j.queue = w.queue AND j.state = 0 LIMIT 1)),
         array_agg((SELECT min(j.due) FROM penstock.jobs AS j WHERE j.queue = w.queue AND j.state = 1)),
         array_agg((SELECT min(j.lease) FROM penstock.jobs AS j WHERE j.queue = w.queue AND j.state = 2)),
         array_agg((SELECT h.until FROM penstock.queue_holds AS h WHERE h.queue = w.queue AND h.until > now))
  INTO paused, waiting, first_due, first_lease, held_until FROM unnest(request.queues) AS w;
  FOREACH q IN ARRAY request.queues LOOP
    i := i + 1;
    next_due := least(next_due, held_until[i]);
    IF paused[i] IS NULL THEN
      drained := drained || q.queue;  -- it never had a job
    END IF;
    CONTINUE WHEN cardinality(taken) >= request.wanted OR coalesce(paused[i], true);
    IF first_due[i] <= now OR first_lease[i] <= now THEN
      UPDATE penstock.jobs SET state = 0 WHERE pk = ANY (ARRAY(
        SELECT pk FROM penstock.jobs WHERE queue = q.queue AND state = 1 AND due <= now
        ORDER BY due LIMIT 1000 FOR UPDATE SKIP LOCKED));
      UPDATE penstock.jobs SET state = 0, crashes = least(crashes, 2147483646) + 1, lease = NULL WHERE pk = ANY (ARRAY(
        SELECT pk FROM penstock.jobs WHERE queue = q.queue AND state = 2 AND lease <= now
        ORDER BY lease LIMIT 1000 FOR UPDATE SKIP LOCKED));
      waiting[i] := true;
      first_due[i] := (SELECT min(j.due) FROM penstock.jobs AS j WHERE j.queue = q.queue AND j.state = 1);
      first_lease[i] := (SELECT min(j.lease) FROM penstock.jobs AS j WHERE j.queue = q.queue AND j.state = 2);
    END IF;
    next_due := least(next_due, first_due[i], first_lease[i]);
    allowed := NULL;
    IF request.only_runs IS NOT NULL AND q.queue <> 'penstock-events' THEN
      allowed := ARRAY(
        SELECT o.pk FROM unnest(request.only_runs) AS x (run)
        JOIN penstock.jobs AS o ON o.id > x.run || '.' AND o.id < x.run || '/' AND o.run = x.run AND o.state = 0
        UNION ALL SELECT o.pk FROM penstock.jobs AS o WHERE o.id = ANY (request.only_jobs) AND o.state = 0);
    END IF;
    room := CASE WHEN held_until[i] IS NULL THEN least(q.wanted, request.wanted - cardinality(taken)) ELSE 0 END;
    IF q.max_active IS NOT NULL THEN
      room := least(room, q.max_active - (SELECT count(*) FROM penstock.jobs WHERE queue = q.queue AND state = 2));
    END IF;
    LOOP
      page := room;
      IF q.rate_max IS NOT NULL AND q.is_rate_per_key THEN
        page := CASE WHEN room > 0 THEN 100 ELSE 0 END;
      ELSIF q.rate_max IS NOT NULL THEN
        page := least(room, q.rate_max - coalesce((
          SELECT used FROM penstock.rates
          WHERE queue = q.queue AND key = '' AND now < until AND until <= now + 2 * q.rate_ms), 0));
      END IF;
      EXIT WHEN page <= 0;
      IF waiting[i] IS NULL THEN
        drained := drained || q.queue;
        EXIT;
      END IF;
      -- A job whose run is closed or gone is cancelled, one whose run is paused is held.
      IF q.rate_max IS NULL AND allowed IS NULL THEN
        WITH picked AS (
          SELECT j.pk, j.run FROM penstock.jobs AS j WHERE j.queue = q.queue AND j.state = 0
          ORDER BY j.priority, j.pk LIMIT page FOR UPDATE SKIP LOCKED),
        moved AS (
          UPDATE penstock.jobs AS j SET
            state = x.next_state,
            attempt = CASE WHEN x.next_state = 2 THEN least(j.attempt, 2147483646) + 1 ELSE j.attempt END,
            token = CASE WHEN x.next_state = 2 THEN secret || '.' || j.pk ELSE j.token END,
            lease = CASE WHEN x.next_state = 2 THEN lease_end END,
            finished = CASE WHEN x.next_state = 6 THEN now ELSE j.finished END
          FROM (SELECT p.pk, (CASE WHEN p.run IS NULL THEN 2 WHEN r.id IS NULL OR r.closed THEN 6
                                   WHEN r.paused THEN -1 ELSE 2 END)::smallint AS next_state
                FROM picked AS p LEFT JOIN penstock.runs AS r ON r.id = p.run) AS x
          WHERE j.pk = x.pk RETURNING j.priority, j.pk, x.next_state),
        counted AS (
          INSERT INTO penstock.finished_counts (queue, state, n)
          SELECT q.queue, 6, count(*) FROM moved AS m WHERE m.next_state = 6 HAVING count(*) > 0)
        SELECT count(*), coalesce(array_agg(m.pk ORDER BY m.priority, m.pk) FILTER (WHERE m.next_state = 2), '{}')
        INTO seen, pks FROM moved AS m;
        taken := taken || pks;
        room := room - cardinality(pks);
        IF seen < page THEN
          drained := drained || q.queue;
          EXIT;
        END IF;
        CONTINUE;
      END IF;
      SELECT array_agg(x.pk), array_agg(x.next_state), array_agg(x.rate_key), array_agg(NULL::bigint)
      INTO pks, next_states, keys, dues FROM (
        SELECT j.pk, j.rate_key, (CASE WHEN j.run IS NULL THEN 2 WHEN r.id IS NULL OR r.closed THEN 6
                                       WHEN r.paused THEN -1 ELSE 2 END)::smallint AS next_state
        FROM (SELECT pk, run, rate_key, priority FROM penstock.jobs
              WHERE queue = q.queue AND state = 0 AND (allowed IS NULL OR pk = ANY (allowed))
              ORDER BY priority, pk LIMIT page FOR UPDATE SKIP LOCKED) AS j
        LEFT JOIN penstock.runs AS r ON r.id = j.run
        ORDER BY j.priority, j.pk) AS x;
      IF pks IS NULL THEN
        drained := CASE WHEN allowed IS NULL THEN drained || q.queue ELSE drained END;
        EXIT;
      END IF;
      FOR k IN 1..cardinality(pks) LOOP
        CONTINUE WHEN next_states[k] <> 2;
        IF room <= 0 THEN
          next_states[k] := 0;  -- it stays in line
          CONTINUE;
        END IF;
        ends := CASE WHEN q.rate_max IS NOT NULL THEN penstock.use_rate(now, q.queue, CASE WHEN q.is_rate_per_key THEN coalesce(keys[k], '') ELSE '' END,
                                  q.rate_max, q.rate_ms) END;
        IF ends IS NULL THEN
          room := room - 1;
        ELSE
          next_states[k] := 1;
          dues[k] := ends;
          next_due := least(next_due, ends);
        END IF;
      END LOOP;
      UPDATE penstock.jobs AS j SET
        state = x.next_state,
        attempt = CASE WHEN x.next_state = 2 THEN least(j.attempt, 2147483646) + 1 ELSE j.attempt END,
        token = CASE WHEN x.next_state = 2 THEN secret || '.' || j.pk ELSE j.token END,
        lease = CASE WHEN x.next_state = 2 THEN lease_end END,
        due = coalesce(x.due, j.due),
        finished = CASE WHEN x.next_state = 6 THEN now ELSE j.finished END
      FROM unnest(pks, next_states, dues) AS x (pk, next_state, due) WHERE j.pk = x.pk AND x.next_state <> 0;
      IF NOT (2 = ALL (next_states)) THEN
        INSERT INTO penstock.finished_counts (queue, state, n)
        SELECT q.queue, 6, count(*) FROM unnest(next_states) AS x (next_state) WHERE x.next_state = 6 HAVING count(*) > 0;
        pks := ARRAY(SELECT x.pk FROM unnest(pks, next_states) WITH ORDINALITY AS x (pk, next_state, ord)
                     WHERE x.next_state = 2 ORDER BY x.ord);
      END IF;
      taken := taken || pks;
      IF cardinality(next_states) < page THEN
        drained := CASE WHEN 0 = ANY (next_states) OR allowed IS NOT NULL THEN drained ELSE drained || q.queue END;
        EXIT;
      END IF;
    END LOOP;
    IF q.rate_max IS NOT NULL AND NOT q.is_rate_per_key THEN
      next_due := least(next_due, (
        SELECT until FROM penstock.rates
        WHERE queue = q.queue AND key = '' AND now < until AND until <= now + 2 * q.rate_ms AND used >= q.rate_max));
    END IF;
  END LOOP;
  IF cardinality(taken) > 0 THEN
    next_due := least(next_due, lease_end);
  END IF;
END $$;

-- Extends leases. Returns the positions of claims that are lost or whose run is closed.
CREATE OR REPLACE FUNCTION penstock.renew_leases(
  now_override bigint, lease_ms bigint, pks bigint[], attempts integer[], tokens text[]
) RETURNS integer[] LANGUAGE sql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
  WITH locked AS (
    SELECT j.pk FROM penstock.jobs AS j WHERE j.pk = ANY (pks) ORDER BY j.pk FOR UPDATE),
  renewed AS (
    UPDATE penstock.jobs AS j SET lease = penstock.now_ms(now_override) + lease_ms
    FROM unnest(pks, attempts, tokens) WITH ORDINALITY AS c (pk, attempt, token, ord) JOIN locked AS l ON l.pk = c.pk
    WHERE j.pk = c.pk AND j.state = 2 AND j.attempt = c.attempt AND j.token = c.token
    RETURNING c.ord, j.run)
  SELECT ARRAY(
    SELECT c.ord::integer FROM generate_series(1, cardinality(pks)) AS c (ord)
    WHERE NOT EXISTS (
      SELECT 1 FROM renewed AS k LEFT JOIN penstock.runs AS r ON r.id = k.run
      WHERE k.ord = c.ord AND (k.run IS NULL OR NOT r.closed)) ORDER BY c.ord)
$$;
