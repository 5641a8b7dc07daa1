-- Parents and children.

-- Lets a parent go on, unless it waits for more children or is gone. Its delay starts now. Returns its queue.
CREATE OR REPLACE FUNCTION penstock.release_parent(now bigint, parent_id text, at_once boolean) RETURNS text LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  released text;
BEGIN
  IF at_once OR NOT EXISTS (SELECT 1 FROM penstock.children WHERE parent = parent_id AND state = 0) THEN
    UPDATE penstock.jobs SET state = CASE WHEN due > created THEN 1 ELSE 0 END,
                             due = CASE WHEN due > created THEN now + due - created ELSE due END
    WHERE id = parent_id AND state = -2 RETURNING queue INTO released;
  END IF;
  RETURN released;
END $$;

-- Records how children ended (4 completed, 5 failed or cancelled). Returns the queues of parents that can go on.
CREATE OR REPLACE FUNCTION penstock.end_children(now bigint, ends penstock.child_end[]) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  e penstock.child_end;
  policy text;
  released text;
  woken text[] := '{}';
BEGIN
  FOREACH e IN ARRAY ends LOOP
    released := NULL;
    SELECT on_failure INTO policy FROM penstock.children WHERE parent = e.parent AND child = e.child AND state = 0;
    CONTINUE WHEN NOT FOUND OR (e.state = 5 AND policy = 'wait');
    IF e.state = 5 AND policy = 'remove' THEN
      DELETE FROM penstock.children WHERE parent = e.parent AND child = e.child;
    ELSE
      UPDATE penstock.children SET state = CASE WHEN e.state = 4 THEN 1 WHEN policy = 'fail' THEN 3 ELSE 2 END,
                                   value = e.value, reason = e.reason
      WHERE parent = e.parent AND child = e.child;
    END IF;
    IF e.state = 5 AND policy = 'fail' THEN
      -- The parent fails now: a delay must not keep it.
      UPDATE penstock.jobs SET state = 0, due = 0 WHERE id = e.parent AND state IN (-2, 1) RETURNING queue INTO released;
    ELSE
      released := penstock.release_parent(now, e.parent, e.state = 5 AND policy = 'continue');
    END IF;
    IF released IS NOT NULL THEN
      woken := woken || released;
    END IF;
  END LOOP;
  RETURN woken;
END $$;

-- Jobs were deleted: their parents no longer wait for them. Returns the queues of parents that can go on.
CREATE OR REPLACE FUNCTION penstock.drop_children(now_override bigint, ids text[]) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  now bigint := penstock.now_ms(now_override);
  parents text[] := ARRAY(
    SELECT DISTINCT parent FROM penstock.children WHERE child = ANY (ids) AND state = 0 ORDER BY parent);
BEGIN
  PERFORM 1 FROM penstock.jobs WHERE id = ANY (parents) ORDER BY pk FOR UPDATE;
  DELETE FROM penstock.children WHERE child = ANY (ids) AND parent = ANY (parents) AND state = 0;
  RETURN ARRAY(
    SELECT r.queue FROM (SELECT penstock.release_parent(now, p.parent, false) AS queue FROM unnest(parents) AS p (parent)) AS r
    WHERE r.queue IS NOT NULL);
END $$;

-- Enters the children of jobs that a group of units has added.
CREATE OR REPLACE FUNCTION penstock.add_children(
  jobs penstock.new_job[], added integer[], children penstock.new_child[]
) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
  UPDATE penstock.children AS k SET child = j.id, queue = j.queue
  FROM unnest(children) AS c, unnest(jobs) WITH ORDINALITY AS j
  WHERE c.replaces IS NOT NULL AND c.job = ANY (added) AND j.ordinality = c.job
    AND k.parent = c.parent AND k.child = c.replaces AND k.state = 0;
  INSERT INTO penstock.children (parent, child, queue, on_failure)
  SELECT c.parent, j.id, j.queue, c.on_failure
  FROM unnest(children) AS c JOIN unnest(jobs) WITH ORDINALITY AS j ON j.ordinality = c.job
  WHERE c.replaces IS NULL AND c.job = ANY (added)
  ON CONFLICT (parent, child) DO NOTHING;
END $$;
