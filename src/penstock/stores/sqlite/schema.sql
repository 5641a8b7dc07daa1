-- The embedded store. States: -2 waiting for children, -1 held, 0 waiting, 1 delayed, 2 active, 3 suspended, 4 completed, 5 failed, 6 cancelled.
-- Times are milliseconds since the epoch. Partial indexes keep claims as fast with a million finished jobs as with none.

CREATE TABLE streams (
  sid  INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  seq  INTEGER NOT NULL,          -- the last sequence number given out
  ms   INTEGER NOT NULL           -- the last time given out: it never goes back
);

CREATE TABLE events (
  pos  INTEGER PRIMARY KEY,       -- commit order over all streams
  sid  INTEGER NOT NULL,
  seq  INTEGER NOT NULL,
  ms   INTEGER NOT NULL,
  kind TEXT,                      -- of events that others may wait for
  body BLOB NOT NULL
);
CREATE UNIQUE INDEX events_by_stream ON events (sid, seq);
CREATE INDEX events_told ON events (kind, pos) WHERE kind IS NOT NULL;

CREATE TABLE runs (
  id      TEXT PRIMARY KEY,
  version INTEGER NOT NULL,
  flow    TEXT NOT NULL,
  status  TEXT NOT NULL,
  closed  INTEGER NOT NULL,
  paused  INTEGER NOT NULL DEFAULT 0,
  created INTEGER NOT NULL,
  updated INTEGER NOT NULL,
  unit    TEXT NOT NULL,          -- the last unit applied: a repeated commit is recognised by it
  record  BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX runs_by_time ON runs (created, id);
CREATE INDEX runs_by_flow ON runs (flow, created, id);
CREATE INDEX runs_by_status ON runs (status, created, id);
CREATE INDEX runs_open ON runs (created) WHERE closed = 0;

CREATE TABLE jobs (
  pk        INTEGER PRIMARY KEY,  -- order of arrival
  id        TEXT NOT NULL UNIQUE,
  queue     TEXT NOT NULL,
  name      TEXT NOT NULL,
  state     INTEGER NOT NULL,
  priority  INTEGER NOT NULL,
  due       INTEGER NOT NULL,
  attempt   INTEGER NOT NULL DEFAULT 0,
  failures  INTEGER NOT NULL DEFAULT 0,
  crashes   INTEGER NOT NULL DEFAULT 0,
  lease     INTEGER,
  token     TEXT,
  unit      TEXT,
  run       TEXT,
  scope     TEXT,
  rate_key  TEXT,
  created   INTEGER NOT NULL,
  finished  INTEGER,
  started_stream TEXT,
  started_head   BLOB,
  opts      BLOB NOT NULL,
  payload   BLOB NOT NULL,
  progress  BLOB,
  result    BLOB,
  error     BLOB
);
CREATE INDEX jobs_waiting ON jobs (queue, priority, pk) WHERE state = 0;
CREATE INDEX jobs_delayed ON jobs (queue, due) WHERE state = 1;
CREATE INDEX jobs_active ON jobs (queue, lease) WHERE state = 2;
CREATE INDEX jobs_suspended ON jobs (queue, pk) WHERE state = 3;
CREATE INDEX jobs_held ON jobs (queue, pk) WHERE state = -1;
CREATE INDEX jobs_finished ON jobs (queue, state, finished) WHERE state >= 4;

CREATE TABLE queues (
  name   TEXT PRIMARY KEY,
  paused INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE rates (
  queue TEXT NOT NULL,
  key   TEXT NOT NULL,
  until INTEGER NOT NULL,         -- end of the window
  used  INTEGER NOT NULL,
  PRIMARY KEY (queue, key)
) WITHOUT ROWID;

CREATE TABLE memos (
  scope TEXT NOT NULL,
  name  TEXT NOT NULL,
  value BLOB NOT NULL,
  PRIMARY KEY (scope, name)
) WITHOUT ROWID;

CREATE TABLE waits (
  id     TEXT PRIMARY KEY,
  run    TEXT NOT NULL,
  scope  TEXT NOT NULL,
  kind   TEXT NOT NULL,
  state  TEXT NOT NULL,           -- open, resolved, expired or cancelled
  due    INTEGER,
  job    TEXT NOT NULL,           -- whom to wake
  topic  TEXT,                    -- the kind of event that may close it
  key    TEXT,                    -- what that event must hold
  pos    INTEGER NOT NULL,        -- the last event of all streams when it was first opened
  body   BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX waits_by_run ON waits (run, state);
CREATE INDEX waits_pending ON waits (kind, id) WHERE state = 'pending';
CREATE INDEX waits_by_topic ON waits (topic, key, id) WHERE state = 'pending' AND topic IS NOT NULL;

CREATE TABLE states (
  key     TEXT PRIMARY KEY,
  value   BLOB NOT NULL,
  version INTEGER NOT NULL,
  expires INTEGER
) WITHOUT ROWID;
CREATE INDEX states_expiring ON states (expires) WHERE expires IS NOT NULL;

CREATE TABLE schedules (
  id     TEXT PRIMARY KEY,
  spec   BLOB NOT NULL,
  target BLOB NOT NULL,
  next   INTEGER,
  last   INTEGER,
  paused INTEGER NOT NULL DEFAULT 0,
  fired  INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (next) WHERE next IS NOT NULL AND paused = 0;

CREATE TABLE once (
  key TEXT PRIMARY KEY,
  at  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX once_by_time ON once (at);

CREATE TABLE units (              -- applied units that neither a job nor a run row remembers
  id TEXT PRIMARY KEY,
  at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX units_by_time ON units (at);
