-- The fast path of the commonest commit: attempts of jobs without a run that completed, and the request for more jobs.
--
-- PL/pgSQL sets up each expression again in every transaction; commit_units has over a hundred, this function a few statements.
-- It passes every other case (a job that has just become due, an expired lease, a held queue, a job of a run) to commit_units.
-- Jobs come sorted by pk, each once. Columns come as arrays of their own: the driver encodes them faster than rows.
CREATE OR REPLACE FUNCTION penstock.finish_jobs(
  now_override bigint, pks bigint[], unit_ids text[], attempts integer[], tokens text[], results json[],
  event_units integer[], event_streams text[], event_bodies json[], request penstock.claim_request,
  OUT now bigint, OUT verdicts smallint[], OUT refusals penstock.refusal[], OUT added integer[], OUT key_holders text[],
  OUT event_times bigint[], OUT event_seqs bigint[], OUT deliveries integer, OUT woken text[],
  OUT claims penstock.claimed_job[], OUT claimed_memos penstock.new_memo[], OUT drained text[], OUT next_due bigint
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  unit_count integer := cardinality(pks);
  max_claims integer := request.wanted;
  lease_ms bigint := request.lease_ms;
  waiting bigint;
  done bigint[];
  is_rare boolean;
  has_claimed_memos boolean;
  streams text[] := event_streams;
  bodies json[] := event_bodies;
  started_streams text[];
  started_bodies json[];
  stream_sid bigint;
  base bigint;
  at bigint;
  xid bigint;
  subxid bigint;
  new_stamp bigint;
BEGIN
  now := penstock.now_ms(now_override);
  SELECT min(least(x.due, x.lease)), sum(x.waiting), bool_or(x.held) OR sum(x.runs) > 0 OR min(least(x.due, x.lease)) <= now,
         array_agg(x.queue) FILTER (WHERE x.waiting = 0)
  INTO next_due, waiting, is_rare, drained FROM (
    SELECT w.queue, (SELECT min(j.due) FROM penstock.jobs AS j WHERE j.queue = w.queue AND j.state = 1) AS due,
           (SELECT min(j.lease) FROM penstock.jobs AS j WHERE j.queue = w.queue AND j.state = 2) AS lease,
           (SELECT true FROM penstock.queue_holds AS h WHERE h.queue = w.queue AND h.until > now) AS held, f.waiting, f.runs
    FROM unnest(request.queues) AS w LEFT JOIN penstock.queues AS k ON k.name = w.queue, LATERAL (
      SELECT count(*) AS waiting, count(p.run) AS runs FROM (
        SELECT j.run FROM penstock.jobs AS j WHERE j.queue = w.queue AND j.state = 0
        ORDER BY j.priority, j.pk LIMIT max_claims) AS p) AS f
    WHERE k.paused IS NOT TRUE) AS x;
  IF is_rare THEN
    SELECT c.* INTO now, verdicts, refusals, added, key_holders, event_times, event_seqs, deliveries, woken, claims,
                    claimed_memos, drained, next_due
    FROM penstock.commit_units(
      now_override, array_remove(ARRAY[unit_count], 0), '{}', pks, '{}',
      ARRAY(SELECT (f.unit, false, f.n, f.attempt, f.token, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                    4, 0, NULL, f.result, NULL, NULL, false, 0)::penstock.new_unit
            FROM unnest(unit_ids, attempts, tokens, results) WITH ORDINALITY AS f (unit, attempt, token, result, n)
            ORDER BY f.n),
      '{}',
      ARRAY(SELECT (e.unit, NULL, e.stream, NULL, e.body, NULL)::penstock.new_event
            FROM unnest(event_units, event_streams, event_bodies) WITH ORDINALITY AS e (unit, stream, body, n) ORDER BY e.n),
      NULL, request) AS c;
    RETURN;
  END IF;

  IF unit_count > 0 THEN
    -- An attempt that has lost its lease is not found.
    WITH moved AS (
      UPDATE penstock.jobs AS k SET state = 4, finished = now, unit = f.unit, result = f.result, lease = NULL
      FROM unnest(pks, unit_ids, attempts, tokens, results) WITH ORDINALITY AS f (pk, unit, attempt, token, result, n)
      WHERE k.pk = f.pk AND k.state = 2 AND k.attempt = f.attempt AND k.token = f.token RETURNING f.n, k.queue),
    counted AS (INSERT INTO penstock.finished_counts (queue, state, n) SELECT m.queue, 4, count(*) FROM moved AS m GROUP BY m.queue)
    SELECT array_agg(m.n) INTO done FROM moved AS m;
    IF cardinality(done) = unit_count THEN
      verdicts := array_fill(0::smallint, ARRAY[unit_count]);
    ELSE
      -- The job's row names the unit that was applied before.
      verdicts := ARRAY(
        SELECT CASE WHEN f.n = ANY (done) THEN 0
                    WHEN (SELECT k.unit FROM penstock.jobs AS k WHERE k.pk = f.pk) = f.unit THEN 1 ELSE 2 END
        FROM unnest(pks, unit_ids) WITH ORDINALITY AS f (pk, unit, n) ORDER BY f.n);
      SELECT coalesce(array_agg(e.stream ORDER BY e.n), '{}'), coalesce(array_agg(e.body ORDER BY e.n), '{}')
      INTO streams, bodies FROM unnest(event_units, event_streams, event_bodies) WITH ORDINALITY AS e (unit, stream, body, n)
      WHERE verdicts[e.unit] = 0;
    END IF;
  END IF;

  IF waiting > 0 THEN
    WITH picked AS (
      SELECT p.pk, w.ordinality
      FROM unnest(request.queues) WITH ORDINALITY AS w, LATERAL (
        SELECT j.pk FROM penstock.jobs AS j WHERE j.queue = w.queue AND j.state = 0 AND j.run IS NULL
        ORDER BY j.priority, j.pk
        LIMIT (SELECT CASE WHEN k.paused THEN 0 ELSE w.wanted END FROM penstock.queues AS k WHERE k.name = w.queue)
        FOR UPDATE SKIP LOCKED) AS p LIMIT max_claims),
    moved AS (
      UPDATE penstock.jobs AS j SET state = 2, attempt = least(j.attempt, 2147483646) + 1, token = request.secret || '.' || j.pk,
                                    lease = now + lease_ms
      FROM picked AS x WHERE j.pk = x.pk
      RETURNING x.ordinality, j.priority, j.pk, j.attempt > 1 OR j.unit IS NOT NULL OR j.scope IS NOT NULL AS has_memos, j.started_stream,
                j.started_prefix || '"attempt":' || j.attempt || ',"worker":"' || request.worker || '"}}' AS started_body,
                (j.id, j.queue, j.name, j.payload, j.opts, coalesce(j.scope, j.id), j.attempt, j.failures, j.crashes, j.pk,
                 NULL, 0, NULL, j.started_stream, NULL)::penstock.claimed_job AS claim)
    SELECT array_agg(g.claim), bool_or(g.has_memos),
           array_agg(g.started_stream) FILTER (WHERE g.started_stream IS NOT NULL),
           array_agg(g.started_body::json) FILTER (WHERE g.started_stream IS NOT NULL)
    INTO claims, has_claimed_memos, started_streams, started_bodies
    FROM (SELECT * FROM moved AS m ORDER BY m.ordinality, m.priority, m.pk) AS g;
    next_due := least(next_due, CASE WHEN claims IS NOT NULL THEN now + lease_ms END);
    streams := streams || started_streams;
    bodies := bodies || started_bodies;
    IF has_claimed_memos THEN
      claimed_memos := ARRAY(
        SELECT (NULL, m.scope, m.name, m.value)::penstock.new_memo
        FROM (SELECT DISTINCT c.scope FROM unnest(claims) AS c) AS w JOIN penstock.memos AS m ON m.scope = w.scope);
    END IF;
  END IF;

  IF cardinality(streams) = 0 THEN
    RETURN;
  END IF;
  IF streams[1] = ALL (streams) THEN
    -- As append_events does it, which explains stamps.
    SELECT k.sid, k.seq, greatest(k.ms, now), pg_current_xact_id()::text::bigint INTO stream_sid, base, at, xid
    FROM penstock.streams AS k WHERE k.name = streams[1] FOR UPDATE;
  END IF;
  IF stream_sid IS NULL THEN
    SELECT a.event_times, a.event_seqs INTO event_times, event_seqs FROM penstock.append_events(
      now, streams, array_fill(NULL::text, ARRAY[cardinality(streams)]), bodies, '{}', false, '{}') AS a;
    RETURN;
  END IF;
  BEGIN
    UPDATE penstock.streams AS s SET seq = base + cardinality(streams), ms = at WHERE s.sid = stream_sid
    RETURNING s.xmin::text::bigint INTO subxid;
    new_stamp := xid - (xid & 4294967295) + subxid + CASE WHEN (xid & 4294967295) > subxid THEN 4294967296 ELSE 0 END;
    INSERT INTO penstock.events (sid, seq, ms, stamp, n, body)
    SELECT stream_sid, base + x.n, at, new_stamp, x.n, x.body FROM unnest(bodies) WITH ORDINALITY AS x (body, n);
  EXCEPTION WHEN assert_failure THEN
    RAISE;  -- never happens: an EXCEPTION clause makes the block a subtransaction
  END;
  IF cardinality(event_units) > 0 THEN
    -- Only the units' own events: the caller does not need the positions of the others.
    event_times := array_fill(at, ARRAY[cardinality(event_units)]);
    event_seqs := ARRAY(SELECT generate_series(base + 1, base + cardinality(event_units)));
  END IF;
END $$;
