-- What is written for units and claims, each as a statement that can be run alone or from a tape with many others: at
-- most eight values, numbered.

-- name: begin_run
-- id, flow, status, closed, paused, now, unit, record
INSERT INTO runs (id, version, flow, status, closed, paused, created, updated, unit, record)
VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8);

-- name: move_run
-- id, version, now, unit, record: the usual write, which leaves the indexes alone
UPDATE runs SET version = ?2, updated = ?3, unit = ?4, record = ?5 WHERE id = ?1;

-- name: change_run
-- id, version, now, unit, record, status, closed, paused
UPDATE runs SET version = ?2, updated = ?3, unit = ?4, record = ?5, status = ?6, closed = ?7, paused = ?8
WHERE id = ?1;

-- name: end_attempt
-- pk, state, due, finished, unit, result, error, failures
UPDATE jobs SET state = ?2, due = coalesce(?3, due), finished = ?4, unit = ?5, result = ?6, error = coalesce(?7, error),
                failures = failures + ?8, lease = NULL
WHERE pk = ?1;

-- name: hand_out
-- pk, attempt, token, lease
UPDATE jobs SET state = 2, attempt = ?2, token = ?3, lease = ?4 WHERE pk = ?1;

-- name: know_queue
INSERT INTO queues (name) VALUES (?1) ON CONFLICT (name) DO NOTHING;

-- name: keep_memo
INSERT INTO memos (scope, name, value) VALUES (?1, ?2, ?3) ON CONFLICT (scope, name) DO NOTHING;

-- name: remember_unit
INSERT INTO units (id, at) VALUES (?1, ?2);

-- name: open_stream
INSERT INTO streams (sid, name, seq, ms) VALUES (?1, ?2, ?3, ?4);

-- name: move_stream
UPDATE streams SET seq = ?2, ms = ?3 WHERE sid = ?1;
