-- The rarer parts of units: preconditions, waits, states, dedupe keys and limits on finished jobs.

-- Returns the precondition of a unit that fails, if one does. Every row looked at stays locked, or is inserted later by a
-- statement that fails if another transaction was faster; the caller then repeats the whole call.
CREATE OR REPLACE FUNCTION penstock.check_preconditions(
  unit_no integer, now bigint, removes penstock.job_ref[], waits penstock.wait_change[], states penstock.state_write[],
  schedules penstock.schedule_move[], once_keys penstock.once_key[], OUT why text, OUT key text
) LANGUAGE plpgsql AS $$
DECLARE
  x record;
BEGIN
  SELECT o.key INTO key FROM unnest(once_keys) AS o JOIN penstock.once_keys AS k ON k.key = o.key WHERE o.unit = unit_no;
  IF FOUND THEN
    why := 'duplicate';
    RETURN;
  END IF;
  FOR x IN SELECT r.id FROM unnest(removes) WITH ORDINALITY AS r WHERE r.unit = unit_no ORDER BY r.ordinality LOOP
    PERFORM 1 FROM penstock.jobs
    WHERE id = x.id AND (state IN (0, 1, 3, 5) OR (state = -1 AND order_key IS NOT NULL)) FOR UPDATE;
    IF NOT FOUND THEN
      why := 'taken';
      key := x.id;
      RETURN;
    END IF;
  END LOOP;
  SELECT 'wait', w.id INTO why, key
  FROM unnest(waits) WITH ORDINALITY AS w LEFT JOIN penstock.waits AS k ON k.id = w.id
  WHERE w.unit = unit_no AND ((w.is_new AND (k.state IN ('resolved', 'expired') OR k.final))
                              OR NOT (w.is_new OR w.is_lenient OR k.state IS NOT DISTINCT FROM 'pending'))
  ORDER BY w.ordinality LIMIT 1;
  IF FOUND THEN
    RETURN;
  END IF;
  SELECT 'state', s.key INTO why, key
  FROM unnest(states) WITH ORDINALITY AS s
  LEFT JOIN penstock.states AS k ON k.key = s.key AND (k.expires IS NULL OR k.expires > now)
  WHERE s.unit = unit_no AND s.expect IS NOT NULL AND coalesce(k.version, 0) <> s.expect
  ORDER BY s.ordinality LIMIT 1;
  IF FOUND THEN
    RETURN;
  END IF;
  FOR x IN SELECT m.id, m.slot FROM unnest(schedules) AS m WHERE m.unit = unit_no LOOP
    PERFORM 1 FROM penstock.schedules WHERE id = x.id AND next = x.slot FOR UPDATE;
    IF NOT FOUND THEN
      why := 'schedule';
      key := x.id;
    END IF;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION penstock.write_waits(unit_no integer, now bigint, waits penstock.wait_change[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  x record;
BEGIN
  FOR x IN SELECT * FROM unnest(waits) WITH ORDINALITY AS w WHERE w.unit = unit_no ORDER BY w.ordinality LOOP
    IF x.is_new THEN
      -- If the wait was resolved since it was checked, no row is found and the caller repeats the whole call.
      INSERT INTO penstock.waits AS g (id, run, scope, kind, state, due, job, topic, key, stamp, created, body)
      VALUES (x.id, x.run, x.scope, x.kind, 'pending', x.due, x.job, x.topic, x.key,
              pg_current_xact_id()::text::bigint, now, x.body)
      ON CONFLICT (id) DO UPDATE SET
        state = 'pending', due = x.due, job = x.job, topic = x.topic, key = x.key, body = x.body,
        settled = NULL
      WHERE g.state IN ('pending', 'cancelled') AND NOT g.final;
      IF NOT FOUND THEN
        RAISE serialization_failure USING MESSAGE = 'the wait was resolved meanwhile';
      END IF;
    ELSE
      UPDATE penstock.waits SET state = x.state, settled = now, final = x.is_final WHERE id = x.id AND state = 'pending';
    END IF;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION penstock.write_states(unit_no integer, now bigint, states penstock.state_write[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  x record;
BEGIN
  -- Whether a write is the first of its key is found for all of them at once: a unit may have thousands.
  FOR x IN
    SELECT s.*, row_number() OVER (PARTITION BY s.key ORDER BY s.ordinality) = 1 AS is_first
    FROM unnest(states) WITH ORDINALITY AS s WHERE s.unit = unit_no ORDER BY s.ordinality
  LOOP
    IF x.value IS NULL THEN
      DELETE FROM penstock.states WHERE key = x.key;
    ELSIF x.expect = 0 AND x.is_first THEN
      -- An expired row may still be there. A row that another transaction has just inserted makes this fail, and the caller
      -- repeats the whole call.
      DELETE FROM penstock.states WHERE key = x.key AND expires <= now;
      INSERT INTO penstock.states (key, value, version, expires) VALUES (x.key, x.value, 1, x.expires);
    ELSE
      INSERT INTO penstock.states AS k (key, value, version, expires) VALUES (x.key, x.value, 1, x.expires)
      ON CONFLICT (key) DO UPDATE SET value = x.value, version = k.version + 1, expires = x.expires;
    END IF;
  END LOOP;
END $$;

-- Returns, for the jobs with a dedupe key that the units from `first` to `last` add, the job that holds the key, if one does.
CREATE OR REPLACE FUNCTION penstock.find_key_holders(
  now bigint, first integer, last integer, dedupes penstock.new_dedupe[], holders text[]
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  d penstock.new_dedupe;
  holder text;
  i integer := 0;
BEGIN
  FOREACH d IN ARRAY dedupes LOOP
    i := i + 1;
    CONTINUE WHEN d.unit NOT BETWEEN first AND last OR EXISTS (SELECT 1 FROM penstock.jobs WHERE id = d.id);
    SELECT k.job INTO holder FROM penstock.dedupe_keys AS k LEFT JOIN penstock.jobs AS j ON j.id = k.job
    WHERE k.queue = d.queue AND k.key = d.key AND (k.until > now OR (k.until IS NULL AND j.state < 4));
    IF holder IS NULL THEN
      -- The first job of these units with the key holds it.
      SELECT b.id INTO holder FROM unnest(dedupes) WITH ORDINALITY AS b
      WHERE b.ordinality < i AND b.unit >= first AND b.queue = d.queue AND b.key = d.key AND b.id <> d.id
        AND holders[b.ordinality::integer] IS NULL
      ORDER BY b.ordinality LIMIT 1;
    END IF;
    holders[i] := holder;
  END LOOP;
  RETURN holders;
END $$;

-- Applies `keep` limits other than 0: removes finished jobs beyond a count or an age. Jobs that another transaction has locked
-- are left to it, so this waits for nothing.
CREATE OR REPLACE FUNCTION penstock.remove_finished(now bigint, keeps penstock.keep_limit[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  x record;
  scopes text[];
  ids text[];
  more_scopes text[];
  more_ids text[];
BEGIN
  FOR x IN
    SELECT DISTINCT ON (k.queue, k.state) k.queue, k.state, k.count, k.age_ms
    FROM unnest(keeps) AS k ORDER BY k.queue, k.state, k.unit DESC
  LOOP
    WITH surplus AS (
      SELECT j.pk FROM penstock.jobs AS j
      WHERE j.queue = x.queue AND j.state = x.state AND j.state >= 4 AND j.run IS NULL AND (
        j.finished <= now - x.age_ms
        OR (j.finished, j.pk) <= (
          SELECT b.finished, b.pk FROM penstock.jobs AS b
          WHERE b.queue = x.queue AND b.state = x.state AND b.state >= 4 AND b.run IS NULL AND x.count IS NOT NULL
          ORDER BY b.finished DESC, b.pk DESC LIMIT 1 OFFSET x.count))
      ORDER BY j.finished, j.pk LIMIT 1000 FOR UPDATE SKIP LOCKED),
    dropped AS (
      DELETE FROM penstock.jobs AS j USING surplus AS s WHERE j.pk = s.pk
      RETURNING coalesce(j.scope, j.id) AS scope, j.id)
    SELECT array_agg(d.scope), array_agg(d.id) INTO more_scopes, more_ids FROM dropped AS d;
    scopes := scopes || more_scopes;
    ids := ids || more_ids;
  END LOOP;
  IF ids IS NOT NULL THEN
    PERFORM penstock.forget_jobs(now, scopes, ids);
  END IF;
END $$;

-- Deletes what is left of jobs that were removed.
CREATE OR REPLACE FUNCTION penstock.forget_jobs(now bigint, scopes text[], ids text[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
  PERFORM penstock.forget_scopes(scopes);
  PERFORM penstock.drop_children(now, ids);
  DELETE FROM penstock.dedupe_keys WHERE job = ANY (ids) AND until IS NULL;
END $$;

-- Deletes the memos and the children's results of scopes whose last job is gone. A redriven job reads those of the job it
-- continues, so its id starts with the scope.
CREATE OR REPLACE FUNCTION penstock.forget_scopes(scopes text[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  gone text[] := ARRAY(
    SELECT g.scope FROM unnest(scopes) AS g (scope) WHERE NOT EXISTS (
      SELECT 1 FROM penstock.jobs AS j WHERE j.id = g.scope OR (j.id > g.scope || '.' AND j.id < g.scope || '/')));
BEGIN
  DELETE FROM penstock.memos WHERE scope = ANY (gone);
  DELETE FROM penstock.children WHERE parent = ANY (gone);
END $$;
