-- The outbox table in the caller's database. `{0}` stands for the first value: each driver has its own placeholder.

-- name: create_postgresql
CREATE TABLE IF NOT EXISTS penstock_outbox (
  seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id        text NOT NULL UNIQUE,
  namespace text NOT NULL,
  summary   text NOT NULL,
  unit      text NOT NULL,
  error     text
);

-- name: create_sqlite
CREATE TABLE IF NOT EXISTS penstock_outbox (
  seq       integer PRIMARY KEY AUTOINCREMENT,
  id        text NOT NULL UNIQUE,
  namespace text NOT NULL,
  summary   text NOT NULL,
  unit      text NOT NULL,
  error     text
);

-- name: exists_postgresql
SELECT 1 WHERE to_regclass('penstock_outbox') IS NOT NULL;

-- name: exists_sqlite
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'penstock_outbox';

-- name: insert
INSERT INTO penstock_outbox (id, namespace, summary, unit) VALUES ({0}, {1}, {2}, {3});

-- name: read_page
SELECT id, unit FROM penstock_outbox WHERE namespace = {0} AND error IS NULL ORDER BY seq LIMIT {1};

-- name: delete
DELETE FROM penstock_outbox WHERE id IN (ids);

-- name: set_error
UPDATE penstock_outbox SET error = {0} WHERE id = {1};
