-- What stays of finished jobs, keys by which jobs stand for each other, and queues that are held. The calls that need none
-- of it are as they were.

CREATE TABLE penstock.dedupes (
  queue text COLLATE "C" NOT NULL,
  key   text COLLATE "C" NOT NULL,
  job   text COLLATE "C" NOT NULL, -- the job that holds the key
  until bigint,                    -- until when it does; null: until it has ended
  PRIMARY KEY (queue, key)
) WITH (fillfactor = 70);
CREATE INDEX dedupes_by_job ON penstock.dedupes (job);

CREATE TABLE penstock.holds (      -- queues of which nobody is handed a job
  queue text COLLATE "C" PRIMARY KEY,
  until bigint NOT NULL
);

-- Before units are applied: which of the jobs they add are not to be, since another holds their key. `units` is j_unit with
-- a 0 for each of those, `stand` who stands for them. Whoever asks for a key takes turns, before all other locks.
CREATE FUNCTION penstock.admit(
  given_now bigint, j_unit integer[], d_job integer[], d_id text[], d_queue text[], d_key text[],
  OUT units integer[], OUT stand text[]
) LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  holder text;
BEGIN
  units := j_unit;
  stand := array_fill(NULL::text, ARRAY[cardinality(d_job)]);
  IF cardinality(d_job) = 0 THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(k.lock) FROM (
    SELECT DISTINCT hashtextextended('penstock.dedupes ' || d.queue || ' ' || d.key, 0) AS lock
    FROM unnest(d_queue, d_key) AS d (queue, key) ORDER BY 1) AS k;
  now := penstock.moment(given_now);
  FOR i IN 1..cardinality(d_job) LOOP
    CONTINUE WHEN EXISTS (SELECT 1 FROM penstock.jobs WHERE id = d_id[i]);
    SELECT d.job INTO holder FROM penstock.dedupes AS d LEFT JOIN penstock.jobs AS j ON j.id = d.job
    WHERE d.queue = d_queue[i] AND d.key = d_key[i] AND (d.until > now OR (d.until IS NULL AND j.state < 4));
    IF holder IS NULL THEN
      -- The first one of this call stands for the rest.
      SELECT b.id INTO holder FROM unnest(d_id, d_queue, d_key, stand) WITH ORDINALITY AS b (id, queue, key, stand, ord)
      WHERE b.ord < i AND b.queue = d_queue[i] AND b.key = d_key[i] AND b.stand IS NULL AND b.id <> d_id[i]
      ORDER BY b.ord LIMIT 1;
    END IF;
    IF holder IS NOT NULL THEN
      units[d_job[i]] := 0;
      stand[i] := holder;
    END IF;
  END LOOP;
END $$;

-- After units are applied: what was added holds its keys, queues are held, and of what has ended stays what is to. Rows that
-- another is at are left to it, so nobody waits here.
CREATE FUNCTION penstock.settle(
  now bigint, verdicts smallint[], added integer[],
  d_job integer[], d_id text[], d_queue text[], d_key text[], d_ttl bigint[],
  h_unit integer[], h_queue text[], h_until bigint[],
  k_unit integer[], k_pk bigint[], k_queue text[], k_state smallint[], k_count integer[], k_age bigint[]
) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  x record;
  scopes text[];
  ids text[];
  gone text[];
  gone_ids text[];
BEGIN
  INSERT INTO penstock.dedupes AS k (queue, key, job, until)
  SELECT DISTINCT ON (d.queue, d.key) d.queue, d.key, d.id, now + d.ttl
  FROM unnest(d_job, d_id, d_queue, d_key, d_ttl) AS d (job, id, queue, key, ttl)
  WHERE d.job = ANY (added) ORDER BY d.queue, d.key, d.job DESC
  ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, until = excluded.until;
  INSERT INTO penstock.holds AS g (queue, until)
  SELECT h.queue, max(h.until) FROM unnest(h_unit, h_queue, h_until) AS h (unit, queue, until)
  WHERE verdicts[h.unit] = 0 GROUP BY h.queue ORDER BY h.queue
  ON CONFLICT (queue) DO UPDATE SET until = greatest(g.until, excluded.until);
  WITH dropped AS (
    DELETE FROM penstock.jobs AS j USING unnest(k_unit, k_pk, k_count) AS k (unit, pk, count)
    WHERE j.pk = k.pk AND k.count = 0 AND verdicts[k.unit] = 0 AND j.state IN (4, 5)
    RETURNING coalesce(j.scope, j.id) AS scope, j.id)
  SELECT array_agg(d.scope), array_agg(d.id) INTO scopes, ids FROM dropped AS d;
  FOR x IN
    SELECT DISTINCT ON (k.queue, k.state) k.queue, k.state, k.count, k.age
    FROM unnest(k_unit, k_queue, k_state, k_count, k_age) AS k (unit, queue, state, count, age)
    WHERE verdicts[k.unit] = 0 AND k.count IS DISTINCT FROM 0 ORDER BY k.queue, k.state, k.unit DESC
  LOOP
    WITH crowded AS (
      SELECT j.pk FROM penstock.jobs AS j
      WHERE j.queue = x.queue AND j.state = x.state AND j.state >= 4 AND j.run IS NULL AND (
        j.finished <= now - x.age
        OR (j.finished, j.pk) <= (
          SELECT b.finished, b.pk FROM penstock.jobs AS b
          WHERE b.queue = x.queue AND b.state = x.state AND b.state >= 4 AND b.run IS NULL AND x.count IS NOT NULL
          ORDER BY b.finished DESC, b.pk DESC LIMIT 1 OFFSET x.count))
      ORDER BY j.finished, j.pk LIMIT 1000 FOR UPDATE SKIP LOCKED),
    dropped AS (
      DELETE FROM penstock.jobs AS j USING crowded AS c WHERE j.pk = c.pk
      RETURNING coalesce(j.scope, j.id) AS scope, j.id)
    SELECT array_agg(d.scope), array_agg(d.id) INTO gone, gone_ids FROM dropped AS d;
    scopes := scopes || gone;
    ids := ids || gone_ids;
  END LOOP;
  DELETE FROM penstock.memos WHERE scope IN (
    SELECT g.scope FROM unnest(scopes) AS g (scope) WHERE NOT EXISTS (
      SELECT 1 FROM penstock.jobs AS j WHERE j.id = g.scope OR (j.id > g.scope || '.' AND j.id < g.scope || '/')));
  DELETE FROM penstock.children WHERE parent IN (
    SELECT g.scope FROM unnest(scopes) AS g (scope) WHERE NOT EXISTS (
      SELECT 1 FROM penstock.jobs AS j WHERE j.id = g.scope OR (j.id > g.scope || '.' AND j.id < g.scope || '/')));
  IF ids IS NOT NULL THEN
    PERFORM penstock.drop_children(now, ids);
  END IF;
  RETURN true;
END $$;

-- Handing out, but nothing of queues that are held: those are asked for again when their time is up.
ALTER FUNCTION penstock.hand_out(
  bigint, bigint, text, integer, text[], integer[], integer[], integer[], bigint[], boolean[]) RENAME TO hand_out_any;
CREATE FUNCTION penstock.hand_out(
  now bigint, lease_ms bigint, secret text, most integer,
  q_name text[], q_limit integer[], q_max_active integer[], q_rate integer[], q_span bigint[], q_per_key boolean[],
  OUT taken bigint[], OUT emptied text[], OUT next_due bigint
) LANGUAGE plpgsql AS $$
DECLARE
  lifted bigint := (SELECT min(h.until) FROM penstock.holds AS h WHERE h.queue = ANY (q_name) AND h.until > now);
BEGIN
  IF lifted IS NOT NULL THEN
    q_limit := ARRAY(
      SELECT CASE WHEN h.queue IS NULL THEN w.most ELSE 0 END
      FROM unnest(q_name, q_limit) WITH ORDINALITY AS w (name, most, ord)
      LEFT JOIN penstock.holds AS h ON h.queue = w.name AND h.until > now ORDER BY w.ord);
  END IF;
  SELECT h.taken, h.emptied, least(h.next_due, lifted) INTO taken, emptied, next_due
  FROM penstock.hand_out_any(now, lease_ms, secret, most, q_name, q_limit, q_max_active, q_rate, q_span, q_per_key) AS h;
END $$;
