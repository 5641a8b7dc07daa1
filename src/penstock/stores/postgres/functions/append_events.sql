-- Appends events. A call locks the streams, in the order of their names, after every other lock.
--
-- `claims` are jobs of runs that are being claimed. If a run was closed or paused meanwhile, its jobs are returned as `dropped`
-- and nothing is appended.
--
-- `originals` may be shorter than `bodies`: the rest have none.
--
-- The feed is ordered by stamps. A stamp is the number of a subtransaction that begins once the streams are locked: of two
-- commits to one stream, the second has the higher stamp. A transaction's number is lower than those of its subtransactions,
-- so no stamp below the oldest open transaction (pg_snapshot_xmin) can appear later.
CREATE OR REPLACE FUNCTION penstock.append_events(
  now bigint, streams text[], kinds text[], bodies json[], originals json[], has_kinds boolean, claims bigint[],
  OUT event_times bigint[], OUT event_seqs bigint[], OUT deliveries integer, OUT dropped bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
  total integer := cardinality(streams);
  is_one_stream boolean := streams[1] = ALL (streams);
  names text[];                   -- of the streams, each once
  counts bigint[];
  sids bigint[];
  bases bigint[];
  times bigint[];
  stream_sid bigint;
  base bigint;
  at bigint;
  subxid bigint;
  xid bigint;
  new_stamp bigint;
BEGIN
  deliveries := 0;
  IF is_one_stream THEN
    SELECT k.sid, k.seq, k.ms INTO stream_sid, base, at FROM penstock.streams AS k WHERE k.name = streams[1] FOR UPDATE;
    base := coalesce(base, 0);
    at := greatest(at, now);
  ELSE
    SELECT array_agg(g.stream), array_agg(g.count) INTO names, counts FROM (
      SELECT e.stream, count(*) AS count FROM unnest(streams) AS e (stream)
      GROUP BY e.stream ORDER BY e.stream COLLATE "C") AS g;
    SELECT array_agg(s.sid), array_agg(s.seq), array_agg(greatest(s.ms, now)) INTO sids, bases, times
    FROM (SELECT k.sid, k.seq, k.ms FROM penstock.streams AS k WHERE k.name = ANY (names) ORDER BY k.name FOR UPDATE) AS s;
  END IF;
  IF cardinality(claims) > 0 THEN
    -- The last event of a run that was closed since its job was claimed is in the stream by now: nothing may follow it.
    WITH late AS (
      UPDATE penstock.jobs AS j SET
        state = CASE WHEN r.id IS NULL OR r.closed THEN 6 ELSE -1 END,
        finished = CASE WHEN r.id IS NULL OR r.closed THEN now END,
        attempt = j.attempt - 1, lease = NULL
      FROM penstock.jobs AS c LEFT JOIN penstock.runs AS r ON r.id = c.run
      WHERE c.pk = ANY (claims) AND j.pk = c.pk AND c.run IS NOT NULL AND (r.id IS NULL OR r.closed OR r.paused)
      RETURNING j.pk, j.queue, j.state),
    counted AS (
      INSERT INTO penstock.finished_counts (queue, state, n)
      SELECT l.queue, 6, count(*) FROM late AS l WHERE l.state = 6 GROUP BY l.queue)
    SELECT array_agg(pk) INTO dropped FROM late;
    IF dropped IS NOT NULL THEN
      RETURN;
    END IF;
  END IF;
  IF total = 0 THEN
    RETURN;
  END IF;
  IF NOT is_one_stream AND cardinality(sids) IS DISTINCT FROM cardinality(names) THEN
    SELECT array_agg(s.sid), array_agg(coalesce(s.seq, 0)), array_agg(greatest(s.ms, now)) INTO sids, bases, times
    FROM (SELECT k.sid, k.seq, k.ms FROM unnest(names) WITH ORDINALITY AS g (name, ord)
          LEFT JOIN penstock.streams AS k ON k.name = g.name ORDER BY g.ord) AS s;
  END IF;
  xid := pg_current_xact_id()::text::bigint;
  BEGIN
    IF is_one_stream THEN
      IF stream_sid IS NULL THEN
        INSERT INTO penstock.streams AS s (name, seq, ms) VALUES (streams[1], total, at)
        RETURNING s.sid, s.xmin::text::bigint INTO stream_sid, subxid;
      ELSE
        UPDATE penstock.streams AS s SET seq = base + total, ms = at WHERE s.sid = stream_sid
        RETURNING s.xmin::text::bigint INTO subxid;
      END IF;
    ELSE
      IF array_position(sids, NULL) IS NOT NULL THEN
        WITH created AS (
          INSERT INTO penstock.streams (name, seq, ms)
          SELECT g.name, g.count, g.ms FROM unnest(names, counts, times, sids) WITH ORDINALITY AS g (name, count, ms, sid, ord)
          WHERE g.sid IS NULL ORDER BY g.ord RETURNING xmin)
        SELECT max(c.xmin::text::bigint) INTO subxid FROM created AS c;
        sids := ARRAY(SELECT k.sid FROM unnest(names) WITH ORDINALITY AS g (name, ord)
                      JOIN penstock.streams AS k ON k.name = g.name ORDER BY g.ord);
      END IF;
      WITH moved AS (
        UPDATE penstock.streams AS s SET seq = g.base + g.count, ms = g.ms
        FROM unnest(sids, bases, counts, times) AS g (sid, base, count, ms) WHERE s.sid = g.sid AND g.base > 0
        RETURNING s.xmin)
      SELECT coalesce(max(m.xmin::text::bigint), subxid) INTO subxid FROM moved AS m;
    END IF;
    new_stamp := xid - (xid & 4294967295) + subxid;
    IF new_stamp < xid THEN
      new_stamp := new_stamp + 4294967296;
    END IF;
    IF is_one_stream THEN
      INSERT INTO penstock.events (sid, seq, ms, stamp, n, kind, body, original)
      SELECT stream_sid, base + x.n, at, new_stamp, x.n, x.kind, x.body, x.original
      FROM unnest(kinds, bodies, originals) WITH ORDINALITY AS x (kind, body, original, n);
      event_times := array_fill(at, ARRAY[total]);
      event_seqs := ARRAY(SELECT generate_series(base + 1, base + total));
    ELSE
      WITH written AS (
        INSERT INTO penstock.events (sid, seq, ms, stamp, n, kind, body, original)
        SELECT sids[x.home], bases[x.home] + x.rank, times[x.home], new_stamp, x.n, x.kind, x.body, x.original
        FROM (SELECT e.n, e.kind, e.body, e.original, dense_rank() OVER (ORDER BY e.stream COLLATE "C")::integer AS home,
                     row_number() OVER (PARTITION BY e.stream COLLATE "C" ORDER BY e.n)::integer AS rank
              FROM unnest(streams, kinds, bodies, originals) WITH ORDINALITY AS e (stream, kind, body, original, n)) AS x
        RETURNING n, seq, ms)
      SELECT array_agg(w.ms ORDER BY w.n), array_agg(w.seq ORDER BY w.n) INTO event_times, event_seqs FROM written AS w;
    END IF;
  EXCEPTION WHEN assert_failure THEN
    RAISE;  -- never happens: an EXCEPTION clause makes the block a subtransaction
  END;
  IF has_kinds THEN
    -- A wait that is created later looks back by itself: see the topic locks in commit_units.
    INSERT INTO penstock.jobs (pk, id, queue, name, state, priority, due, created, opts, payload)
    SELECT nextval('penstock.jobs_pk'), format('deliver.%s.%s', new_stamp, a.n), 'penstock-events', 'deliver', 0, 0, 0, now,
           '{}'::bytea, format('{"stream":%s,"id":"%s-%s","cursor":"%s.%s","body":%s}', to_json(a.stream), a.ms, a.seq,
                               new_stamp, a.n, coalesce(a.original, a.body))::json
    FROM (
      SELECT x.* FROM unnest(streams, event_times, event_seqs, kinds, bodies, originals) WITH ORDINALITY
        AS x (stream, ms, seq, kind, body, original, n)
      WHERE x.kind IS NOT NULL AND EXISTS (
        SELECT 1 FROM penstock.waits AS g WHERE g.topic = x.kind AND g.topic IS NOT NULL AND g.state = 'pending')
      ORDER BY x.n) AS a;
    GET DIAGNOSTICS deliveries = ROW_COUNT;
    IF deliveries > 0 THEN
      INSERT INTO penstock.queues (name) VALUES ('penstock-events') ON CONFLICT (name) DO NOTHING;
    END IF;
  END IF;
END $$;
