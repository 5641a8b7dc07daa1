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

-- name: has_columns
SELECT seq, id, namespace, summary, unit, error FROM penstock_outbox LIMIT 0;

-- name: read_page_postgresql
-- The oldest rows, up to {1} of them and about {2} bytes, at least one.
SELECT seq, id, unit FROM (
  SELECT seq, id, unit, sum(octet_length(unit)) OVER (ORDER BY seq) - octet_length(unit) AS bytes_before FROM (
    SELECT seq, id, unit FROM penstock_outbox WHERE namespace = {0} AND error IS NULL ORDER BY seq LIMIT {1}) AS oldest
) AS page WHERE bytes_before <= {2} ORDER BY seq;

-- name: read_page_sqlite
-- As bytes: SQLite stores any bytes as text, and a driver refuses a whole page for one row that is not UTF-8.
SELECT seq, CAST(id AS blob), CAST(unit AS blob) FROM (
  SELECT seq, id, unit, sum(length(CAST(unit AS blob))) OVER (ORDER BY seq) - length(CAST(unit AS blob)) AS bytes_before FROM (
    SELECT seq, id, unit FROM penstock_outbox WHERE namespace = {0} AND error IS NULL ORDER BY seq LIMIT {1}) AS oldest
) AS page WHERE coalesce(bytes_before, 0) <= {2} ORDER BY seq;

-- name: delete
DELETE FROM penstock_outbox WHERE seq IN (seqs);

-- name: set_error
UPDATE penstock_outbox SET error = {0} WHERE seq = {1};

-- name: count_waiting
SELECT count(*) FROM penstock_outbox WHERE namespace = {0} AND error IS NULL;

-- name: read_failed_postgresql
SELECT seq, id, summary, error FROM penstock_outbox
WHERE namespace = {0} AND error IS NOT NULL AND seq > {1} ORDER BY seq LIMIT {2};

-- name: read_failed_sqlite
SELECT seq, CAST(id AS blob), CAST(summary AS blob), CAST(error AS blob) FROM penstock_outbox
WHERE namespace = {0} AND error IS NOT NULL AND seq > {1} ORDER BY seq LIMIT {2};

-- name: clear_errors
UPDATE penstock_outbox SET error = NULL WHERE namespace = {0} AND error IS NOT NULL;

-- name: clear_error
UPDATE penstock_outbox SET error = NULL WHERE namespace = {0} AND error IS NOT NULL AND seq = {1};
