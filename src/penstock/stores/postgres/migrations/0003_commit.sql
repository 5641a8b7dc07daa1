-- Applying units: checks in order, each on what those before it have done; then the writes of many units at once.
-- What belongs to units comes as arrays of columns; `unit` says which unit a row is of, counted from 1.

-- Whether a unit can have its rarer parts; gives what is in the way. Everything looked at stays locked, or is inserted later
-- by a statement that fails if another was faster: then the whole call is made again.
CREATE FUNCTION penstock.check_rest(
  i integer, now bigint, once_key text, schedule text, slot bigint,
  t_unit integer[], t_id text[],
  w_unit integer[], w_opens boolean[], w_id text[], w_lenient boolean[],
  s_unit integer[], s_key text[], s_expect bigint[],
  OUT why text, OUT what text
) LANGUAGE plpgsql AS $$
DECLARE
  x record;
BEGIN
  IF once_key IS NOT NULL AND EXISTS (SELECT 1 FROM penstock.once WHERE key = once_key) THEN
    why := 'duplicate';
    what := once_key;
    RETURN;
  END IF;
  FOR x IN SELECT t.id FROM unnest(t_unit, t_id) WITH ORDINALITY AS t (unit, id, ord) WHERE t.unit = i ORDER BY t.ord LOOP
    PERFORM 1 FROM penstock.jobs WHERE id = x.id AND state IN (0, 1, 3, 5) FOR UPDATE;
    IF NOT FOUND THEN
      why := 'taken';
      what := x.id;
      RETURN;
    END IF;
  END LOOP;
  FOR x IN SELECT w.id, w.opens, w.lenient, g.state
           FROM unnest(w_unit, w_opens, w_id, w_lenient) WITH ORDINALITY AS w (unit, opens, id, lenient, ord)
           LEFT JOIN penstock.waits AS g ON g.id = w.id WHERE w.unit = i ORDER BY w.ord LOOP
    IF (x.opens AND x.state IN ('resolved', 'expired'))
       OR NOT (x.opens OR x.lenient OR x.state IS NOT DISTINCT FROM 'pending') THEN
      why := 'wait';
      what := x.id;
      RETURN;
    END IF;
  END LOOP;
  FOR x IN SELECT s.key, s.expect, coalesce(k.version, 0) AS version
           FROM unnest(s_unit, s_key, s_expect) WITH ORDINALITY AS s (unit, key, expect, ord)
           LEFT JOIN penstock.states AS k ON k.key = s.key AND (k.expires IS NULL OR k.expires > now)
           WHERE s.unit = i AND s.expect IS NOT NULL ORDER BY s.ord LOOP
    IF x.version <> x.expect THEN
      why := 'state';
      what := x.key;
      RETURN;
    END IF;
  END LOOP;
  IF schedule IS NOT NULL THEN
    PERFORM 1 FROM penstock.schedules WHERE id = schedule AND next = slot FOR UPDATE;
    IF NOT FOUND THEN
      why := 'schedule';
      what := schedule;
    END IF;
  END IF;
END $$;

CREATE FUNCTION penstock.write_waits(
  i integer, w_unit integer[], w_opens boolean[], w_id text[], w_run text[], w_scope text[], w_kind text[], w_state text[],
  w_due bigint[], w_job text[], w_topic text[], w_key text[], w_body bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  x record;
BEGIN
  FOR x IN SELECT * FROM unnest(w_unit, w_opens, w_id, w_run, w_scope, w_kind, w_state, w_due, w_job, w_topic, w_key, w_body)
           WITH ORDINALITY AS w (unit, opens, id, run, scope, kind, state, due, job, topic, key, body, ord)
           WHERE w.unit = i ORDER BY w.ord LOOP
    IF x.opens THEN
      -- A gate that was closed since it was looked at is not opened again: nothing is found, and the call is made again.
      INSERT INTO penstock.waits AS g (id, run, scope, kind, state, due, job, topic, key, stamp, body)
      VALUES (x.id, x.run, x.scope, x.kind, 'pending', x.due, x.job, x.topic, x.key,
              pg_current_xact_id()::text::bigint, x.body)
      ON CONFLICT (id) DO UPDATE SET
        state = 'pending', due = x.due, job = x.job, topic = x.topic, key = x.key, body = x.body
      WHERE g.state IN ('pending', 'cancelled');
      IF NOT FOUND THEN
        RAISE serialization_failure USING MESSAGE = 'a gate was closed meanwhile';
      END IF;
    ELSE
      UPDATE penstock.waits SET state = x.state WHERE id = x.id AND state = 'pending';
    END IF;
  END LOOP;
END $$;

CREATE FUNCTION penstock.write_states(
  i integer, now bigint, s_unit integer[], s_key text[], s_value bytea[], s_expect bigint[], s_expires bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  x record;
BEGIN
  FOR x IN SELECT * FROM unnest(s_unit, s_key, s_value, s_expect, s_expires)
           WITH ORDINALITY AS s (unit, key, value, expect, expires, ord) WHERE s.unit = i ORDER BY s.ord LOOP
    IF x.value IS NULL THEN
      DELETE FROM penstock.states WHERE key = x.key;
    ELSIF x.expect = 0 AND NOT EXISTS (
      SELECT 1 FROM unnest(s_unit, s_key) WITH ORDINALITY AS b (unit, key, ord)
      WHERE b.unit = i AND b.key = x.key AND b.ord < x.ord) THEN
      -- An expired one may still be there. One that another has just put in makes this fail, and the call is made again.
      DELETE FROM penstock.states WHERE key = x.key AND expires <= now;
      INSERT INTO penstock.states (key, value, version, expires) VALUES (x.key, x.value, 1, x.expires);
    ELSE
      INSERT INTO penstock.states AS k (key, value, version, expires) VALUES (x.key, x.value, 1, x.expires)
      ON CONFLICT (key) DO UPDATE SET value = x.value, version = k.version + 1, expires = x.expires;
    END IF;
  END LOOP;
END $$;

-- Appends events after all other locks were had, those of the streams in the order of their names. An event's place is
-- what its stream had before (`bases`) and how many of this call come up to it (`ranks`); `homes` says which stream.
--
-- The order of the feed is that of stamps. A stamp is the number of a subtransaction that begins once the streams are locked:
-- of two commits to one stream the second has the higher one, and as the number of a transaction is lower than those of
-- its parts, no stamp below the oldest transaction still open (pg_snapshot_xmin) can turn up any more.
CREATE FUNCTION penstock.append(
  now bigint, e_stream text[], e_kind text[], e_body json[], tells boolean, worker text, claims bigint[],
  OUT homes integer[], OUT ranks integer[], OUT bases bigint[], OUT times bigint[], OUT told integer, OUT dropped bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
  x_stream text[] := e_stream;
  x_kind text[] := e_kind;
  x_body json[] := e_body;
  grown text[];
  many bigint[];
  sids bigint[];
  part bigint;
  top bigint;
  stamp bigint;
BEGIN
  told := 0;
  IF cardinality(claims) > 0 THEN
    SELECT e_stream || array_agg(g.started_stream), e_kind || array_agg(NULL::text),
           e_body || array_agg((g.started_head || '"attempt":' || g.attempt || ',"worker":"' || worker || '"}}')::json)
    INTO x_stream, x_kind, x_body
    FROM (SELECT j.started_stream, j.started_head, j.attempt
          FROM unnest(claims) WITH ORDINALITY AS c (pk, ord) JOIN penstock.jobs AS j ON j.pk = c.pk
          WHERE j.started_stream IS NOT NULL ORDER BY c.ord) AS g;
  END IF;
  IF coalesce(cardinality(x_stream), 0) = 0 THEN
    RETURN;
  END IF;
  SELECT array_agg(x.home ORDER BY x.n), array_agg(x.rank ORDER BY x.n) INTO homes, ranks FROM (
    SELECT e.n, dense_rank() OVER (ORDER BY e.stream COLLATE "C")::integer AS home,
           row_number() OVER (PARTITION BY e.stream COLLATE "C" ORDER BY e.n)::integer AS rank
    FROM unnest(x_stream) WITH ORDINALITY AS e (stream, n)) AS x;
  SELECT array_agg(g.stream), array_agg(g.many) INTO grown, many FROM (
    SELECT e.stream, count(*) AS many FROM unnest(x_stream) AS e (stream)
    GROUP BY e.stream ORDER BY e.stream COLLATE "C") AS g;
  PERFORM 1 FROM penstock.streams WHERE name = ANY (grown) ORDER BY name FOR UPDATE;
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
      -- Seldom: once more, without them.
      SELECT a.homes, a.ranks, a.bases, a.times, a.told INTO homes, ranks, bases, times, told
      FROM penstock.append(now, e_stream, e_kind, e_body, tells, worker, ARRAY(
        SELECT c.pk FROM unnest(claims) WITH ORDINALITY AS c (pk, ord) WHERE c.pk <> ALL (dropped) ORDER BY c.ord)) AS a;
      RETURN;
    END IF;
  END IF;
  SELECT array_agg(s.sid), array_agg(coalesce(s.seq, 0)), array_agg(greatest(s.ms, now)) INTO sids, bases, times
  FROM (SELECT k.sid, k.seq, k.ms FROM unnest(grown) WITH ORDINALITY AS g (name, ord)
        LEFT JOIN penstock.streams AS k ON k.name = g.name ORDER BY g.ord) AS s;
  top := pg_current_xact_id()::text::bigint;
  BEGIN
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
    stamp := top - (top & 4294967295) + part;
    IF stamp < top THEN
      stamp := stamp + 4294967296;
    END IF;
    INSERT INTO penstock.events (sid, seq, ms, stamp, n, kind, body)
    SELECT sids[x.home], bases[x.home] + x.rank, times[x.home], stamp, x.n, x.kind, x.body
    FROM unnest(homes, ranks, x_kind, x_body) WITH ORDINALITY AS x (home, rank, kind, body, n);
  EXCEPTION WHEN assert_failure THEN
    RAISE;  -- none is: the clause is what makes a subtransaction of the block
  END;
  IF tells THEN
    -- A gate that is opened later looks back by itself; see the locks of kinds.
    INSERT INTO penstock.jobs (pk, id, queue, name, state, priority, due, created, opts, payload)
    SELECT nextval('penstock.jobs_pk'), format('told.%s.%s', stamp, a.n), 'penstock-events', 'deliver', 0, 0, 0, now,
           '{}'::bytea, format('{"stream":%s,"id":"%s-%s","cursor":"%s.%s"}', to_json(a.stream), times[a.home],
                               bases[a.home] + a.rank, stamp, a.n)::json
    FROM (
      SELECT x.* FROM unnest(x_stream, homes, ranks, x_kind) WITH ORDINALITY AS x (stream, home, rank, kind, n)
      WHERE x.kind IS NOT NULL AND EXISTS (
        SELECT 1 FROM penstock.waits AS g WHERE g.topic = x.kind AND g.topic IS NOT NULL AND g.state = 'pending')
      ORDER BY x.n) AS a;
    GET DIAGNOSTICS told = ROW_COUNT;
    IF told > 0 THEN
      INSERT INTO penstock.queues (name) VALUES ('penstock-events') ON CONFLICT (name) DO NOTHING;
    END IF;
  END IF;
END $$;
