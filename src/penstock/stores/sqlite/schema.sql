-- The SQLite schema. Job states: -2 waiting for children, -1 held, 0 waiting, 1 delayed, 2 active, 3 suspended, 4 completed, 5 failed, 6 cancelled.
-- Times are milliseconds since the epoch. Partial indexes keep claims fast with a million finished jobs.
-- Tables are STRICT and counters have a CHECK: SQLite refuses a wrong value, also from other programs.
-- After a change here, add a migration and see schema.py.

CREATE TABLE streams (
  sid  INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  seq  INTEGER NOT NULL CHECK (seq BETWEEN 0 AND 0x4000000000000000),  -- the last sequence number
  ms   INTEGER NOT NULL           -- the time of the last event: it never goes back
) STRICT;
-- By type: the name up to its second colon, "nq:flow:". Not a generated column, which every update would compute again.
CREATE INDEX streams_by_type ON streams (substr(name, 1, instr(name, ':') + instr(substr(name, instr(name, ':') + 1), ':')));

CREATE TABLE events (
  pos  INTEGER PRIMARY KEY,       -- commit order over all streams
  sid  INTEGER NOT NULL,
  seq  INTEGER NOT NULL,
  ms   INTEGER NOT NULL,
  kind TEXT,                      -- set for events that waits may match
  body BLOB NOT NULL,             -- secrets are redacted
  original BLOB                   -- the body before redaction, if it differs and waits may match it
) STRICT;
CREATE UNIQUE INDEX events_by_stream ON events (sid, seq);
CREATE INDEX events_by_kind ON events (kind, pos) WHERE kind IS NOT NULL;

CREATE TABLE runs (
  id      TEXT PRIMARY KEY,
  version INTEGER NOT NULL CHECK (version BETWEEN 1 AND 0x4000000000000000),
  kind    TEXT NOT NULL,          -- of its engine, and of its stream
  flow    TEXT NOT NULL,
  status  TEXT NOT NULL,
  closed  INTEGER NOT NULL CHECK (closed IN (0, 1)),
  paused  INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
  created INTEGER NOT NULL,
  updated INTEGER NOT NULL,
  unit    TEXT NOT NULL,          -- the last unit applied: identifies a repeated commit
  record  BLOB NOT NULL,
  parent  TEXT,                   -- the run that started it
  root    TEXT,                   -- the first run of that chain
  depth   INTEGER NOT NULL DEFAULT 0,
  call    TEXT                    -- the wait that its end resolves
) WITHOUT ROWID, STRICT;
CREATE INDEX runs_called ON runs (call) WHERE call IS NOT NULL AND closed = 0;
CREATE INDEX runs_by_time ON runs (created, id);
CREATE INDEX runs_by_flow ON runs (flow, created, id);
CREATE INDEX runs_by_status ON runs (status, created, id);
CREATE INDEX runs_open ON runs (created) WHERE closed = 0;
CREATE INDEX runs_closed ON runs (updated, id) WHERE closed = 1;

CREATE TABLE run_keys (           -- what runs are found by; only those that have something to be found by are here
  key     TEXT NOT NULL,
  created INTEGER NOT NULL,       -- of the run
  run     TEXT NOT NULL,
  PRIMARY KEY (key, created, run)
) WITHOUT ROWID, STRICT;
CREATE INDEX run_keys_by_run ON run_keys (run);

CREATE TABLE jobs (
  pk        INTEGER PRIMARY KEY,  -- order of insertion
  id        TEXT NOT NULL UNIQUE,
  queue     TEXT NOT NULL,
  name      TEXT NOT NULL,
  state     INTEGER NOT NULL CHECK (state BETWEEN -2 AND 6),
  priority  INTEGER NOT NULL,
  due       INTEGER NOT NULL,
  attempt   INTEGER NOT NULL DEFAULT 0 CHECK (attempt BETWEEN 0 AND 0x7fffffff),
  failures  INTEGER NOT NULL DEFAULT 0 CHECK (failures BETWEEN 0 AND 0x7fffffff),
  crashes   INTEGER NOT NULL DEFAULT 0 CHECK (crashes BETWEEN 0 AND 0x7fffffff),
  lease     INTEGER,
  token     TEXT,
  unit      TEXT,
  run       TEXT,
  scope     TEXT,
  rate_key  TEXT,
  created   INTEGER NOT NULL,
  finished  INTEGER,
  started_stream TEXT,
  started_prefix BLOB,
  opts      BLOB NOT NULL,
  payload   BLOB NOT NULL,
  progress  BLOB,
  result    BLOB,
  error     BLOB,
  order_key TEXT,                 -- jobs with the same one run one after the other
  error_group TEXT                -- of a dead letter
) STRICT;
CREATE INDEX jobs_waiting ON jobs (queue, priority, pk) WHERE state = 0;
CREATE INDEX jobs_delayed ON jobs (queue, due) WHERE state = 1;
CREATE INDEX jobs_active ON jobs (queue, lease) WHERE state = 2;
CREATE INDEX jobs_suspended ON jobs (queue, pk) WHERE state = 3;
CREATE INDEX jobs_held ON jobs (queue, pk) WHERE state = -1;
-- Retention removes plain jobs by age; the jobs of a run go with the run. Each finished job is in one of the two.
-- They contain `run` because SQLite reads it to check that condition: so it need not read the row.
CREATE INDEX jobs_finished ON jobs (queue, state, run, finished) WHERE state >= 4 AND run IS NULL;
CREATE INDEX steps_finished ON jobs (queue, state, finished, run) WHERE state >= 4 AND run IS NOT NULL;

-- The first open job of a key runs, those behind it are held. A retried job gets a new pk: it goes to the end.
CREATE INDEX jobs_ordered ON jobs (queue, order_key, pk) WHERE state < 4 AND order_key IS NOT NULL;

CREATE INDEX jobs_by_error ON jobs (queue, error_group, pk, created) WHERE state = 0 AND error_group IS NOT NULL;

-- How many finished jobs there are. A commit adds those that it ends; the trigger subtracts those that are deleted.
CREATE TABLE finished_counts (
  queue TEXT NOT NULL,
  state INTEGER NOT NULL CHECK (state BETWEEN 4 AND 6),
  n     INTEGER NOT NULL CHECK (n BETWEEN -0x4000000000000 AND 0x4000000000000),
  PRIMARY KEY (queue, state)
) WITHOUT ROWID, STRICT;
CREATE TRIGGER jobs_deleted AFTER DELETE ON jobs WHEN OLD.state >= 4 BEGIN
  INSERT INTO finished_counts (queue, state, n) VALUES (OLD.queue, OLD.state, -1)
  ON CONFLICT (queue, state) DO UPDATE SET n = n - 1;
END;

CREATE TABLE store_info (         -- facts about the whole store: its namespace
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE queues (
  name   TEXT PRIMARY KEY,
  paused INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID, STRICT;

CREATE TABLE workers (            -- workers that reported themselves; gone after `expires`
  id      TEXT PRIMARY KEY,
  facts   BLOB NOT NULL,          -- JSON of the worker
  seen    INTEGER NOT NULL,
  expires INTEGER NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE queue_minutes (      -- what happened to jobs, by minute
  queue     TEXT NOT NULL,
  minute    INTEGER NOT NULL,
  added     INTEGER NOT NULL,
  completed INTEGER NOT NULL,
  failed    INTEGER NOT NULL,
  retried   INTEGER NOT NULL,
  PRIMARY KEY (queue, minute)
) WITHOUT ROWID, STRICT;
CREATE INDEX queue_minutes_by_time ON queue_minutes (minute);

CREATE TABLE rates (
  queue TEXT NOT NULL,
  key   TEXT NOT NULL,
  until INTEGER NOT NULL,         -- end of the window
  used  INTEGER NOT NULL,
  PRIMARY KEY (queue, key)
) WITHOUT ROWID, STRICT;
CREATE INDEX rates_by_end ON rates (until);

CREATE TABLE memos (
  scope TEXT NOT NULL,
  name  TEXT NOT NULL,
  value BLOB NOT NULL,
  PRIMARY KEY (scope, name)
) WITHOUT ROWID, STRICT;

CREATE TABLE waits (
  id     TEXT PRIMARY KEY,
  run    TEXT NOT NULL,
  scope  TEXT NOT NULL,
  kind   TEXT NOT NULL,
  state  TEXT NOT NULL,           -- pending, resolved, expired or cancelled
  due    INTEGER,
  job    TEXT NOT NULL,           -- the job to wake
  topic  TEXT,                    -- the kind of event that may resolve it
  key    TEXT,                    -- what that event must contain
  pos    INTEGER NOT NULL,        -- the position of the last event when the wait was created
  created INTEGER NOT NULL,
  settled INTEGER,
  final  INTEGER NOT NULL DEFAULT 0,  -- cancelled with a result
  body   BLOB NOT NULL
) WITHOUT ROWID, STRICT;
CREATE INDEX waits_by_run ON waits (run, state);
-- Settled waits of other kinds are found by their run only.
CREATE INDEX waits_by_time ON waits (kind, state, created, id) WHERE state = 'pending' OR kind = 'trigger';
CREATE INDEX waits_by_topic ON waits (topic, key, id) WHERE state = 'pending' AND topic IS NOT NULL;

CREATE TABLE states (
  key     TEXT PRIMARY KEY,
  value   BLOB NOT NULL,
  version INTEGER NOT NULL CHECK (version BETWEEN 1 AND 0x4000000000000000),
  expires INTEGER
) WITHOUT ROWID, STRICT;
CREATE INDEX states_expiring ON states (expires) WHERE expires IS NOT NULL;

CREATE TABLE schedules (
  id     TEXT PRIMARY KEY,
  spec   BLOB NOT NULL,
  target BLOB NOT NULL,
  next   INTEGER,
  last   INTEGER,
  paused INTEGER NOT NULL DEFAULT 0,
  fired  INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID, STRICT;
CREATE INDEX schedules_due ON schedules (next) WHERE next IS NOT NULL AND paused = 0;

CREATE TABLE once (                -- once keys of applied units
  key TEXT PRIMARY KEY,
  at  INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
CREATE INDEX once_by_time ON once (at);

CREATE TABLE units (              -- applied units that no job or run row identifies
  id TEXT PRIMARY KEY,
  at INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
CREATE INDEX units_by_time ON units (at);

CREATE TABLE children (             -- jobs that a parent waits for; the parent is in state -2 until they have ended
  parent     TEXT NOT NULL,
  child      TEXT NOT NULL,
  queue      TEXT NOT NULL,         -- the child's
  on_failure TEXT NOT NULL,
  state      INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),  -- 0 unprocessed, 1 processed, 2 ignored, 3 failed
  value      BLOB,                  -- a result, or the text of an error
  PRIMARY KEY (parent, child)
) WITHOUT ROWID, STRICT;
CREATE INDEX children_pending ON children (parent) WHERE state = 0;
CREATE INDEX children_by_child ON children (child);
CREATE INDEX jobs_waiting_children ON jobs (queue, pk) WHERE state = -2;

CREATE TABLE dedupes (              -- deduplication keys
  queue TEXT NOT NULL,
  key   TEXT NOT NULL,
  job   TEXT NOT NULL,              -- the job that holds the key
  until INTEGER,                    -- when the key expires; NULL: when the job ends
  PRIMARY KEY (queue, key)
) WITHOUT ROWID, STRICT;
CREATE INDEX dedupes_by_job ON dedupes (job);
CREATE INDEX dedupes_expiring ON dedupes (until) WHERE until IS NOT NULL;

CREATE TABLE holds (                -- queues that hand out no jobs until a time
  queue TEXT PRIMARY KEY,
  until INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
