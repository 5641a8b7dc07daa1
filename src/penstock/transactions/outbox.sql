-- The table in the user's database, and what is done with it. `{0}` stands for the first value: each driver has its own mark.

-- name: create_postgresql
CREATE TABLE IF NOT EXISTS penstock_outbox (
  seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id        text NOT NULL UNIQUE,
  namespace text NOT NULL,
  what      text NOT NULL,
  unit      text NOT NULL,
  problem   text
);

-- name: create_sqlite
CREATE TABLE IF NOT EXISTS penstock_outbox (
  seq       integer PRIMARY KEY AUTOINCREMENT,
  id        text NOT NULL UNIQUE,
  namespace text NOT NULL,
  what      text NOT NULL,
  unit      text NOT NULL,
  problem   text
);

-- name: there_postgresql
SELECT 1 WHERE to_regclass('penstock_outbox') IS NOT NULL;

-- name: there_sqlite
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'penstock_outbox';

-- name: put
INSERT INTO penstock_outbox (id, namespace, what, unit) VALUES ({0}, {1}, {2}, {3});

-- name: waiting
SELECT id, unit FROM penstock_outbox WHERE namespace = {0} AND problem IS NULL ORDER BY seq LIMIT {1};

-- name: gone
DELETE FROM penstock_outbox WHERE id IN (ids);

-- name: set_aside
UPDATE penstock_outbox SET problem = {0} WHERE id = {1};
