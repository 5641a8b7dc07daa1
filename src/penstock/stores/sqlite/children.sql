-- Statements of parents and children.

-- name: job_exists
SELECT 1 FROM jobs WHERE id = ?;

-- name: insert_child
INSERT INTO children (parent, child, queue, on_failure) VALUES (?, ?, ?, ?) ON CONFLICT (parent, child) DO NOTHING;

-- name: replace_child
UPDATE OR IGNORE children SET child = ?, queue = ? WHERE parent = ? AND child = ? AND state = 0;

-- name: unsettled_child
SELECT 1 FROM children WHERE parent = ? AND state IN (0, 3) LIMIT 1;

-- name: pending_child
SELECT 1 FROM children WHERE parent = ? AND state = 0 LIMIT 1;

-- name: pending_parents
SELECT parent FROM children WHERE child = ? AND state = 0;

-- name: on_failure
SELECT on_failure FROM children WHERE parent = ? AND child = ? AND state = 0;

-- name: settle_child
UPDATE children SET state = ?, value = ? WHERE parent = ? AND child = ? AND state = 0 RETURNING parent;

-- name: delete_child
DELETE FROM children WHERE parent = ? AND child = ? AND state = 0 RETURNING parent;

-- name: delete_children_of_any_parent
DELETE FROM children WHERE child IN (SELECT value FROM json_each(?)) AND state = 0 RETURNING parent;

-- name: release_parent
-- A parent's delay starts when its children have ended.
UPDATE jobs SET state = CASE WHEN due > created THEN 1 ELSE 0 END,
                due = CASE WHEN due > created THEN ?1 + due - created ELSE due END
WHERE id = ?2 AND state = -2 RETURNING queue;

-- name: release_parent_now
-- A parent that will fail does not wait for its delay.
UPDATE jobs SET state = 0, due = 0 WHERE id = ? AND state IN (-2, 1) RETURNING queue;

-- name: reset_child
UPDATE children SET state = 0, value = NULL WHERE child = ? AND state IN (2, 3);

-- name: suspend_parent
UPDATE jobs SET state = -2 WHERE id = ?1 AND state = 0 AND EXISTS (
  SELECT 1 FROM children WHERE parent = ?1 AND state = 0);

-- name: children
SELECT queue, child, state, value FROM children WHERE parent = ?;

-- name: delete_children
DELETE FROM children WHERE parent IN (SELECT value FROM json_each(?)) AND NOT EXISTS (
  SELECT 1 FROM jobs WHERE id = children.parent OR (id > children.parent || '.' AND id < children.parent || '/'));
