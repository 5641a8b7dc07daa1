-- Ordered keys: of the open jobs of a queue and a key, the first one runs and the others are held (-1). A transaction that adds,
-- ends or removes a job of a key locks the key first: so two jobs never both become the first, and none is added behind a job
-- that ends at the same time. A job that is retried gets a new pk, and goes to the end.

-- Locks keys, in one order: the queue with a shared lock, then each key. A transaction with many keys locks the whole queue
-- instead, because the server has room for some thousands of locks only.
CREATE OR REPLACE FUNCTION penstock.lock_order_keys(orders penstock.order_ref[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  q record;
  locked text[] := '{}';          -- queues that are locked as a whole
BEGIN
  FOR q IN
    SELECT o.queue, count(DISTINCT o.key) AS keys, hashtextextended('penstock.order_queues ' || o.queue, 0) AS lock
    FROM unnest(orders) AS o GROUP BY o.queue ORDER BY lock LOOP
    IF q.keys > 100 THEN
      PERFORM penstock.lock_order_queue(q.queue);
      locked := locked || q.queue;
    ELSE
      PERFORM pg_advisory_xact_lock_shared(q.lock);
    END IF;
  END LOOP;
  PERFORM pg_advisory_xact_lock(k.lock) FROM (
    SELECT DISTINCT hashtextextended('penstock.order_keys ' || o.queue || ' ' || o.key, 0) AS lock
    FROM unnest(orders) AS o WHERE o.queue <> ALL (locked) ORDER BY 1) AS k;
END $$;

-- Locks all keys of a queue, however many there are.
CREATE OR REPLACE FUNCTION penstock.lock_order_queue(of_queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('penstock.order_queues ' || of_queue, 0));
END $$;

-- Releases the first open job of each key if it is held. Returns the queues of those jobs.
CREATE OR REPLACE FUNCTION penstock.release_order_heads(now bigint, orders penstock.order_ref[]) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  queues text[];
BEGIN
  WITH heads AS (
    SELECT h.pk FROM (SELECT DISTINCT o.queue, o.key FROM unnest(orders) AS o) AS k, LATERAL (
      SELECT j.pk, j.state FROM penstock.jobs AS j
      WHERE j.queue = k.queue AND j.order_key = k.key AND j.state < 4 ORDER BY j.pk LIMIT 1) AS h
    WHERE h.state = -1),
  released AS (
    UPDATE penstock.jobs AS j SET state = CASE WHEN j.due > now THEN 1 ELSE 0 END
    FROM heads AS h WHERE j.pk = h.pk RETURNING j.queue)
  SELECT array_agg(DISTINCT r.queue) INTO queues FROM released AS r;
  RETURN coalesce(queues, '{}');
END $$;
