-- Handing out jobs: due ones, priority first, within the limits.

CREATE FUNCTION penstock.moment(given bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(given, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

-- Uses up one of a window's claims; null if there was one left, else when the window ends.
CREATE FUNCTION penstock.spend(now bigint, in_queue text, of_key text, most integer, span bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  ends bigint;
BEGIN
  -- Who waited for the row may read an earlier clock than who began the window; more than a span earlier, and the clock
  -- has gone back.
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

-- Takes jobs of each queue that is wanted; they are given in order, with the queues of which nothing due is left, and when
-- to ask again.
CREATE FUNCTION penstock.hand_out(
  now bigint, lease_ms bigint, secret text, most integer,
  q_name text[], q_limit integer[], q_max_active integer[], q_rate integer[], q_span bigint[], q_per_key boolean[],
  OUT taken bigint[], OUT emptied text[], OUT next_due bigint
) LANGUAGE plpgsql AS $$
DECLARE
  q text;
  is_paused boolean;
  overdue boolean;
  waiting boolean;
  room integer;
  page integer;
  pks bigint[];
  acts smallint[];
  keys text[];
  dues bigint[];
  ends bigint;
  asked text[] := '{}';
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
  FOR i IN 1..cardinality(q_name) LOOP
    q := q_name[i];
    CONTINUE WHEN cardinality(taken) >= most;
    SELECT (SELECT paused FROM penstock.queues WHERE name = q),
           EXISTS (SELECT 1 FROM penstock.jobs WHERE queue = q AND state = 0),
           EXISTS (SELECT 1 FROM penstock.jobs WHERE queue = q AND state = 1 AND due <= now)
           OR EXISTS (SELECT 1 FROM penstock.jobs WHERE queue = q AND state = 2 AND lease <= now)
    INTO is_paused, waiting, overdue;
    CONTINUE WHEN is_paused IS NULL OR is_paused;
    asked := asked || q;
    IF overdue THEN
      UPDATE penstock.jobs SET state = 0 WHERE pk = ANY (ARRAY(
        SELECT pk FROM penstock.jobs WHERE queue = q AND state = 1 AND due <= now
        ORDER BY due LIMIT 1000 FOR UPDATE SKIP LOCKED));
      UPDATE penstock.jobs SET state = 0, crashes = crashes + 1, lease = NULL WHERE pk = ANY (ARRAY(
        SELECT pk FROM penstock.jobs WHERE queue = q AND state = 2 AND lease <= now
        ORDER BY lease LIMIT 1000 FOR UPDATE SKIP LOCKED));
      waiting := true;
    END IF;
    room := least(q_limit[i], most - cardinality(taken));
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
      IF NOT waiting THEN
        emptied := emptied || q;
        EXIT;
      END IF;
      -- A run that is closed or gone drops its jobs, one that is paused holds them.
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
      IF q_rate[i] IS NOT NULL THEN
        FOR k IN 1..cardinality(pks) LOOP
          CONTINUE WHEN acts[k] <> 2;
          IF room <= 0 THEN
            acts[k] := 0;  -- it stays in line
            CONTINUE;
          END IF;
          ends := penstock.spend(now, q, CASE WHEN q_per_key[i] THEN coalesce(keys[k], '') ELSE '' END,
                                 q_rate[i], q_span[i]);
          IF ends IS NULL THEN
            room := room - 1;
          ELSE
            acts[k] := 1;
            dues[k] := ends;
          END IF;
        END LOOP;
      END IF;
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
      IF q_rate[i] IS NULL THEN
        room := room - cardinality(pks);
      END IF;
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
  SELECT least(next_due, min(least(
    (SELECT min(due) FROM penstock.jobs WHERE queue = w.name AND state = 1),
    (SELECT min(lease) FROM penstock.jobs WHERE queue = w.name AND state = 2))))
  INTO next_due FROM unnest(asked) AS w (name);
END $$;
