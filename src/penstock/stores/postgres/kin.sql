-- The statements of parents and children.

-- name: lock_parents
SELECT 1 FROM penstock.jobs WHERE id = ANY ($1) ORDER BY pk FOR UPDATE;

-- name: existing
SELECT id FROM penstock.jobs WHERE id = ANY ($1);

-- name: unsettled
SELECT j.pk FROM penstock.jobs AS j WHERE j.pk = ANY ($1) AND j.state = 2 AND EXISTS (
  SELECT 1 FROM penstock.children AS c WHERE c.parent = j.id AND c.state IN (0, 3));

-- name: adopt
INSERT INTO penstock.children (parent, child, queue, on_failure)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) ON CONFLICT (parent, child) DO NOTHING;

-- name: park
UPDATE penstock.jobs SET state = -2 WHERE id = ANY ($1);

-- name: replace
UPDATE penstock.children SET child = $1, queue = $2 WHERE parent = $3 AND child = $4 AND state = 0;

-- name: tell
SELECT penstock.tell_parents($1, $2, $3, $4, $5, $6);

-- name: keep
SELECT penstock.settle(penstock.moment($1), $2::smallint[], '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',
                       $3::integer[], $4::bigint[], $5::text[], $6::smallint[], $7::integer[], $8::bigint[]);

-- name: drop
SELECT penstock.drop_children($1, $2);

-- name: wait_again
UPDATE penstock.children SET state = 0, value = NULL, reason = NULL WHERE child = $1 AND state IN (2, 3);

-- name: wait_for_children
UPDATE penstock.jobs SET state = -2 WHERE id = $1 AND state = 0 AND EXISTS (
  SELECT 1 FROM penstock.children WHERE parent = $1 AND state = 0);

-- name: children
SELECT queue, child, state, value, reason FROM penstock.children WHERE parent = $1;

-- name: forget
DELETE FROM penstock.children WHERE parent IN (
  SELECT g.scope FROM unnest($1::text[]) AS g (scope) WHERE NOT EXISTS (
    SELECT 1 FROM penstock.jobs AS j WHERE j.id = g.scope OR (j.id > g.scope || '.' AND j.id < g.scope || '/')));
