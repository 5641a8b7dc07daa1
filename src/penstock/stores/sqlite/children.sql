-- What format 2 brought: jobs that wait for others. A parent is a job in state -2 until its children have ended.

CREATE TABLE children (
  parent     TEXT NOT NULL,
  child      TEXT NOT NULL,
  queue      TEXT NOT NULL,       -- the child's
  on_failure TEXT NOT NULL,
  state      INTEGER NOT NULL DEFAULT 0,  -- 0 unprocessed, 1 processed, 2 ignored, 3 failed
  value      BLOB,                -- a result, or the text of an error
  PRIMARY KEY (parent, child)
) WITHOUT ROWID;
CREATE INDEX children_pending ON children (parent) WHERE state = 0;
CREATE INDEX children_by_child ON children (child);
CREATE INDEX jobs_waiting_children ON jobs (queue, pk) WHERE state = -2;
