-- The statements of parents and children.

-- name: exists
SELECT 1 FROM jobs WHERE id = ?;

-- name: adopt
INSERT INTO children (parent, child, queue, on_failure) VALUES (?, ?, ?, ?) ON CONFLICT (parent, child) DO NOTHING;

-- name: replace
UPDATE OR IGNORE children SET child = ?, queue = ? WHERE parent = ? AND child = ? AND state = 0;

-- name: unsettled
SELECT 1 FROM children WHERE parent = ? AND state IN (0, 3) LIMIT 1;

-- name: pending
SELECT 1 FROM children WHERE parent = ? AND state = 0 LIMIT 1;

-- name: on_failure
SELECT on_failure FROM children WHERE parent = ? AND child = ? AND state = 0;

-- name: settle
UPDATE children SET state = ?, value = ? WHERE parent = ? AND child = ? AND state = 0 RETURNING parent;

-- name: drop
DELETE FROM children WHERE parent = ? AND child = ? AND state = 0 RETURNING parent;

-- name: drop_gone
DELETE FROM children WHERE child = ? AND state = 0 RETURNING parent;

-- name: release
-- The delay of a parent begins when its children have ended.
UPDATE jobs SET state = CASE WHEN due > created THEN 1 ELSE 0 END,
                due = CASE WHEN due > created THEN ?1 + due - created ELSE due END
WHERE id = ?2 AND state = -2 RETURNING queue;

-- name: hurry
-- A parent that is to fail is not kept waiting by a delay.
UPDATE jobs SET state = 0, due = 0 WHERE id = ? AND state IN (-2, 1) RETURNING queue;

-- name: wait_again
UPDATE children SET state = 0, value = NULL WHERE child = ? AND state IN (2, 3);

-- name: wait_for_children
UPDATE jobs SET state = -2 WHERE id = ?1 AND state = 0 AND EXISTS (
  SELECT 1 FROM children WHERE parent = ?1 AND state = 0);

-- name: children
SELECT queue, child, state, value FROM children WHERE parent = ?;

-- name: forget
DELETE FROM children WHERE parent = ?1 AND NOT EXISTS (
  SELECT 1 FROM jobs WHERE id = ?1 OR (id > ?1 || '.' AND id < ?1 || '/'));
