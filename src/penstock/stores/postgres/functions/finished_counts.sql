-- Counts of finished jobs. Commits insert how many jobs they ended, and deletes and retries a negative number: inserts wait for no
-- lock. The count is the sum. Sweeps merge the rows of a queue and state into one.

CREATE OR REPLACE FUNCTION penstock.uncount_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO penstock.finished_counts (queue, state, n)
  SELECT g.queue, g.state, -count(*) FROM gone AS g WHERE g.state >= 4 GROUP BY g.queue, g.state;
  RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS jobs_deleted ON penstock.jobs;
CREATE TRIGGER jobs_deleted AFTER DELETE ON penstock.jobs REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION penstock.uncount_deleted();

-- Counts the jobs of each queue by state. Live jobs are counted in their partial indexes. Without the settings the planner expects
-- millions of rows, and compiles the query first.
CREATE OR REPLACE FUNCTION penstock.count_queues() RETURNS TABLE (name text, paused boolean, state integer, count bigint)
LANGUAGE sql STABLE SET enable_sort = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
SELECT q.name, q.paused, c.state, c.count FROM penstock.queues AS q LEFT JOIN (
  SELECT queue, 0 AS state, count(*) AS count FROM penstock.jobs WHERE state = 0 GROUP BY queue
  UNION ALL SELECT queue, 1, count(*) FROM penstock.jobs WHERE state = 1 GROUP BY queue
  UNION ALL SELECT queue, 2, count(*) FROM penstock.jobs WHERE state = 2 GROUP BY queue
  UNION ALL SELECT queue, -2, count(*) FROM penstock.jobs WHERE state = -2 GROUP BY queue
  UNION ALL SELECT queue, state, count(*) FROM penstock.jobs WHERE state IN (-1, 3) GROUP BY queue, state
  UNION ALL
  SELECT queue, state, sum(n)::bigint FROM penstock.finished_counts GROUP BY queue, state HAVING sum(n) > 0
) AS c ON c.queue = q.name
ORDER BY q.name
$$;

-- Since when the job that is next in line waits, by queue: the first job of each priority, found in the index, and jobs whose
-- delay is over. More than a hundred priorities of one queue are not looked at.
CREATE OR REPLACE FUNCTION penstock.oldest_waiting(now_override bigint) RETURNS TABLE (queue text, since bigint)
LANGUAGE sql STABLE SET enable_seqscan = off SET jit = off AS $$
WITH RECURSIVE heads AS (
  SELECT q.name AS queue, f.priority, 1 AS n FROM penstock.queues AS q CROSS JOIN LATERAL (
    SELECT j.priority FROM penstock.jobs AS j WHERE j.queue = q.name AND j.state = 0 ORDER BY j.priority LIMIT 1) AS f
  UNION ALL
  SELECT h.queue, f.priority, h.n + 1 FROM heads AS h CROSS JOIN LATERAL (
    SELECT j.priority FROM penstock.jobs AS j WHERE j.queue = h.queue AND j.state = 0 AND j.priority > h.priority
    ORDER BY j.priority LIMIT 1) AS f WHERE h.n < 100)
SELECT o.queue, min(o.since) FROM (
  SELECT h.queue, (SELECT greatest(j.created, j.due) FROM penstock.jobs AS j
                   WHERE j.queue = h.queue AND j.state = 0 AND j.priority = h.priority ORDER BY j.pk LIMIT 1) AS since
  FROM heads AS h
  UNION ALL
  SELECT q.name, (SELECT min(j.due) FROM penstock.jobs AS j
                  WHERE j.queue = q.name AND j.state = 1 AND j.due <= (SELECT penstock.now_ms(now_override)))
  FROM penstock.queues AS q) AS o
WHERE o.since IS NOT NULL GROUP BY o.queue
$$;
