-- The tape is a view that is only written to: a row is a verb and its values, and the verb's trigger does it.

-- name: view
CREATE TEMP VIEW tape (verb, v1, v2, v3, v4, v5, v6, v7, v8) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;

-- name: trigger
CREATE TEMP TRIGGER {verb} INSTEAD OF INSERT ON tape WHEN NEW.verb = '{verb}' BEGIN {statement}; END;

-- name: write
INSERT INTO tape VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);
