-- Jobs that wait for others. A parent is a job in state -2 until its children have ended; what they gave is kept here, also
-- when the child itself is forgotten. Whoever changes what a parent waits for holds the parent's row: of two that end at the
-- same time, the second one sees the first.

CREATE TABLE penstock.children (
  parent     text COLLATE "C" NOT NULL,
  child      text COLLATE "C" NOT NULL,
  queue      text COLLATE "C" NOT NULL,    -- the child's
  on_failure text COLLATE "C" NOT NULL,
  state      smallint NOT NULL DEFAULT 0,  -- 0 unprocessed, 1 processed, 2 ignored, 3 failed
  value      bytea,
  reason     text,
  PRIMARY KEY (parent, child)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX children_pending ON penstock.children (parent) WHERE state = 0;
CREATE INDEX children_by_child ON penstock.children (child);
CREATE INDEX jobs_waiting_children ON penstock.jobs (queue, pk) WHERE state = -2;

-- Lets a parent go on, unless it waits for more or is gone; gives its queue. Its delay begins now.
CREATE FUNCTION penstock.release_parent(now bigint, of_parent text, at_once boolean) RETURNS text LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  home text;
BEGIN
  IF at_once OR NOT EXISTS (SELECT 1 FROM penstock.children WHERE parent = of_parent AND state = 0) THEN
    UPDATE penstock.jobs SET state = CASE WHEN due > created THEN 1 ELSE 0 END,
                             due = CASE WHEN due > created THEN now + due - created ELSE due END
    WHERE id = of_parent AND state = -2 RETURNING queue INTO home;
  END IF;
  RETURN home;
END $$;

-- Tells parents how children ended (4 completed, 5 failed, 6 cancelled); gives the queues of those that go on.
CREATE FUNCTION penstock.tell_parents(
  given_now bigint, parents text[], kids text[], ends smallint[], vals bytea[], reasons text[]
) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  now bigint := penstock.moment(given_now);
  woken text[] := '{}';
  how text;
  home text;
BEGIN
  FOR i IN 1..cardinality(parents) LOOP
    home := NULL;
    SELECT on_failure INTO how FROM penstock.children WHERE parent = parents[i] AND child = kids[i] AND state = 0;
    CONTINUE WHEN NOT FOUND OR (ends[i] = 5 AND how = 'wait');
    IF ends[i] = 6 OR (ends[i] = 5 AND how = 'remove') THEN
      DELETE FROM penstock.children WHERE parent = parents[i] AND child = kids[i];
    ELSE
      UPDATE penstock.children SET state = CASE WHEN ends[i] = 4 THEN 1 WHEN how = 'fail' THEN 3 ELSE 2 END,
                                   value = vals[i], reason = reasons[i]
      WHERE parent = parents[i] AND child = kids[i];
    END IF;
    IF ends[i] = 5 AND how = 'fail' THEN
      -- It is to fail: a delay is not to keep it.
      UPDATE penstock.jobs SET state = 0, due = 0 WHERE id = parents[i] AND state IN (-2, 1) RETURNING queue INTO home;
    ELSE
      home := penstock.release_parent(now, parents[i], ends[i] = 5 AND how = 'continue');
    END IF;
    IF home IS NOT NULL THEN
      woken := woken || home;
    END IF;
  END LOOP;
  RETURN woken;
END $$;

-- Jobs were deleted: nobody waits for them any more. Gives the queues of parents that go on.
CREATE FUNCTION penstock.drop_children(given_now bigint, ids text[]) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  now bigint := penstock.moment(given_now);
  bereft text[] := ARRAY(
    SELECT DISTINCT parent FROM penstock.children WHERE child = ANY (ids) AND state = 0 ORDER BY parent);
BEGIN
  PERFORM 1 FROM penstock.jobs WHERE id = ANY (bereft) ORDER BY pk FOR UPDATE;
  DELETE FROM penstock.children WHERE child = ANY (ids) AND parent = ANY (bereft) AND state = 0;
  RETURN ARRAY(
    SELECT r.home FROM (SELECT penstock.release_parent(now, b.parent, false) AS home FROM unnest(bereft) AS b (parent)) AS r
    WHERE r.home IS NOT NULL);
END $$;
