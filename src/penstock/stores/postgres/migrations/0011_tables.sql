-- The tables.
--
-- Job states: -2 waiting for children, -1 held by a paused run, 0 waiting, 1 delayed, 2 active, 3 suspended, 4 completed,
-- 5 failed, 6 cancelled. Times are milliseconds since the epoch.
-- JSON that people query is json, which keeps the text as it came: jsonb writes 1e2 as 100, reorders keys and refuses \u0000.
-- Bytes that only the engine reads are bytea. Names sort by code point, as they do in the other stores.
-- Fillfactors leave room for updates that touch no index. Counters that a commit adds to have a CHECK: no program can write one
-- that overflows later, and stops the commits of others.

CREATE TABLE penstock.streams (
  sid  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  seq  bigint NOT NULL CHECK (seq BETWEEN 0 AND 1000000000000000),  -- the last sequence number assigned
  ms   bigint NOT NULL CHECK (ms BETWEEN 0 AND 1000000000000000)    -- the last time assigned: it never goes back
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- The name up to its id is its type, "nq:flow:". A stream's row is updated by every append: an index on its name alone is not.
CREATE INDEX streams_by_type ON penstock.streams ((split_part(name, ':', 1) || ':' || split_part(name, ':', 2) || ':') COLLATE "C", sid);

CREATE TABLE penstock.events (
  sid   bigint  NOT NULL,
  seq   bigint  NOT NULL,
  ms    bigint  NOT NULL,
  stamp bigint  NOT NULL,         -- orders the feed: see functions/append_events.sql
  n     integer NOT NULL,         -- position among the events of the transaction
  kind  text COLLATE "C",         -- set on events that runs may wait for
  body  json    NOT NULL,
  original json,                  -- what code receives, if the body is redacted
  PRIMARY KEY (sid, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.1);
CREATE UNIQUE INDEX events_feed ON penstock.events (stamp, n);
CREATE INDEX events_by_kind ON penstock.events (kind, stamp, n) WHERE kind IS NOT NULL;

-- Runs are searched by the input and tags in their first event. jsonb refuses \u0000, so the index holds \u0001 instead, and
-- so does the pattern; the client compares the original text in the end.
-- PL/pgSQL rather than SQL, which the planner would inline: it has to know what each row costs.
CREATE FUNCTION penstock.searchable(body json) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
BEGIN
  RETURN replace(body::text, '\u0000', '\u0001')::jsonb;
END $$;
CREATE INDEX events_search ON penstock.events USING gin (penstock.searchable(body) jsonb_path_ops) WHERE seq = 1;

CREATE TABLE penstock.runs (
  id      text COLLATE "C" PRIMARY KEY,
  version bigint  NOT NULL CHECK (version BETWEEN 1 AND 1000000000000000),
  kind    text COLLATE "C" NOT NULL,  -- of its engine, and of its stream
  flow    text COLLATE "C" NOT NULL,
  status  text COLLATE "C" NOT NULL,
  closed  boolean NOT NULL,
  paused  boolean NOT NULL,
  created bigint  NOT NULL,
  updated bigint  NOT NULL,
  ended   bigint,                 -- when a closed run last moved; an index on `updated` would be written by every commit
  unit    text    NOT NULL,       -- the last unit applied: it identifies a repeated commit
  record  bytea   NOT NULL,
  parent  text COLLATE "C",       -- the run that started it
  root    text COLLATE "C",       -- the first run of that chain
  depth   integer NOT NULL DEFAULT 0,
  call    text COLLATE "C"        -- the wait that its end resolves
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX runs_by_time ON penstock.runs (created, id);
CREATE INDEX runs_called ON penstock.runs (call) WHERE call IS NOT NULL AND NOT closed;
CREATE INDEX runs_by_flow ON penstock.runs (flow, created, id);
CREATE INDEX runs_by_status ON penstock.runs (status, created, id);
CREATE INDEX runs_open ON penstock.runs (created) WHERE NOT closed;
CREATE INDEX runs_ended ON penstock.runs (ended, id) WHERE ended IS NOT NULL;

CREATE TABLE penstock.run_keys (  -- what runs are found by; only those that have something to be found by are here
  key     text COLLATE "C" NOT NULL,
  created bigint NOT NULL,        -- of the run
  run     text COLLATE "C" NOT NULL,
  PRIMARY KEY (key, created, run)
);
CREATE INDEX run_keys_by_run ON penstock.run_keys (run);

CREATE SEQUENCE penstock.jobs_pk;
CREATE TABLE penstock.jobs (
  pk        bigint,               -- order of arrival
  id        text COLLATE "C" NOT NULL,
  queue     text COLLATE "C" NOT NULL,
  name      text     NOT NULL,
  state     smallint NOT NULL CHECK (state BETWEEN -2 AND 6),
  priority  bigint   NOT NULL,
  due       bigint   NOT NULL,
  attempt   integer  NOT NULL DEFAULT 0,
  failures  integer  NOT NULL DEFAULT 0,
  crashes   integer  NOT NULL DEFAULT 0,
  lease     bigint,
  token     text,
  unit      text,                 -- the unit that ended the last attempt
  run       text COLLATE "C",
  scope     text COLLATE "C",
  rate_key  text,
  order_key text COLLATE "C",     -- jobs with the same one run one after the other: see functions/order_keys.sql
  created   bigint   NOT NULL,
  finished  bigint,
  started_stream text COLLATE "C",
  started_prefix text,
  opts      bytea    NOT NULL,
  payload   json     NOT NULL,
  progress  json,
  result    json,
  error     json,
  error_group text COLLATE "C",   -- of a dead letter
  -- A job's row is written three times, when it is added, claimed and finished, and each version is entered in both indexes:
  -- room in their pages keeps them from splitting.
  CONSTRAINT jobs_pkey PRIMARY KEY (pk) WITH (fillfactor = 40),
  CONSTRAINT jobs_id_key UNIQUE (id) WITH (fillfactor = 40)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- Partial indexes hold live jobs only: claims stay as fast with millions of finished jobs as with none.
CREATE INDEX jobs_waiting ON penstock.jobs (queue, priority, pk) WHERE state = 0;
CREATE INDEX jobs_delayed ON penstock.jobs (queue, due, pk) WHERE state = 1;
CREATE INDEX jobs_active ON penstock.jobs (queue, lease) WHERE state = 2;
CREATE INDEX jobs_held_or_suspended ON penstock.jobs (queue, state, pk) WHERE state IN (-1, 3);
CREATE INDEX jobs_waiting_children ON penstock.jobs (queue, pk) WHERE state = -2;
CREATE INDEX jobs_ordered ON penstock.jobs (queue, order_key, pk) WHERE state < 4 AND order_key IS NOT NULL;
CREATE INDEX jobs_by_error ON penstock.jobs (queue, error_group, pk, created) WHERE state = 0 AND error_group IS NOT NULL;
-- Retention removes plain jobs by age; the jobs of a run go with the run. Each finished job is in one of the two.
CREATE INDEX jobs_finished ON penstock.jobs (queue, state, finished, pk) WHERE state >= 4 AND run IS NULL;
CREATE INDEX steps_finished ON penstock.jobs (queue, state, finished, pk) WHERE state >= 4 AND run IS NOT NULL;

-- Which children a parent waits for. A row outlives its child's job, so that the parent can read the result. A transaction
-- that changes the rows of a parent locks the parent's job first: of two children that end at the same time, the second
-- sees the first.
CREATE TABLE penstock.children (
  parent     text COLLATE "C" NOT NULL,
  child      text COLLATE "C" NOT NULL,
  queue      text COLLATE "C" NOT NULL,    -- the child's
  on_failure text COLLATE "C" NOT NULL,
  state      smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),  -- 0 unprocessed, 1 processed, 2 ignored, 3 failed
  value      bytea,
  reason     text,
  PRIMARY KEY (parent, child)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX children_unprocessed ON penstock.children (parent) WHERE state = 0;
CREATE INDEX children_by_child ON penstock.children (child);

-- How many finished jobs there are: commits add rows for those that they end, sweeps merge them. See functions/finished_counts.sql.
CREATE TABLE penstock.finished_counts (
  queue text COLLATE "C" NOT NULL,
  state smallint NOT NULL CHECK (state BETWEEN 4 AND 6),
  n     bigint   NOT NULL CHECK (n BETWEEN -1e15 AND 1e15)  -- negative: jobs that were deleted or retried
) WITH (autovacuum_vacuum_scale_factor = 0.02);

CREATE TABLE penstock.store_info (   -- facts about the whole store: its namespace
  name  text COLLATE "C" PRIMARY KEY,
  value text NOT NULL
);

CREATE TABLE penstock.queues (
  name   text COLLATE "C" PRIMARY KEY,
  paused boolean NOT NULL DEFAULT false
);

CREATE TABLE penstock.queue_holds (  -- queues from which nothing is claimed before `until`
  queue text COLLATE "C" PRIMARY KEY,
  until bigint NOT NULL
);

CREATE TABLE penstock.workers (       -- workers that reported themselves; gone after `expires`
  id      text COLLATE "C" PRIMARY KEY,
  facts   bytea  NOT NULL,        -- JSON of the worker
  seen    bigint NOT NULL,
  expires bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE penstock.queue_minutes ( -- what happened to jobs, by minute
  queue     text COLLATE "C" NOT NULL,
  minute    bigint NOT NULL,
  added     bigint NOT NULL,
  completed bigint NOT NULL,
  failed    bigint NOT NULL,
  retried   bigint NOT NULL,
  PRIMARY KEY (queue, minute)
) WITH (fillfactor = 80);
CREATE INDEX queue_minutes_by_time ON penstock.queue_minutes (minute);

CREATE TABLE penstock.rates (
  queue text COLLATE "C" NOT NULL,
  key   text COLLATE "C" NOT NULL,
  until bigint  NOT NULL,         -- end of the window
  used  integer NOT NULL,
  PRIMARY KEY (queue, key)
) WITH (fillfactor = 70);
CREATE INDEX rates_by_end ON penstock.rates (until);

CREATE TABLE penstock.dedupe_keys (
  queue text COLLATE "C" NOT NULL,
  key   text COLLATE "C" NOT NULL,
  job   text COLLATE "C" NOT NULL, -- the job that holds the key
  until bigint,                    -- end of the hold; null: when the job ends
  PRIMARY KEY (queue, key)
) WITH (fillfactor = 70);
CREATE INDEX dedupe_keys_by_job ON penstock.dedupe_keys (job);
CREATE INDEX dedupe_keys_expiring ON penstock.dedupe_keys (until) WHERE until IS NOT NULL;

CREATE TABLE penstock.memos (
  scope text COLLATE "C" NOT NULL,
  name  text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (scope, name)
);

CREATE TABLE penstock.waits (
  id    text COLLATE "C" PRIMARY KEY,
  run   text COLLATE "C" NOT NULL,
  scope text COLLATE "C" NOT NULL,
  kind  text COLLATE "C" NOT NULL,
  state text COLLATE "C" NOT NULL, -- pending, resolved, expired or cancelled
  due   bigint,
  job   text NOT NULL,            -- the job to wake
  topic text COLLATE "C",         -- the kind of event that may resolve it
  key   text COLLATE "C",         -- what that event must contain
  stamp bigint NOT NULL,          -- of the transaction that created it
  created bigint NOT NULL,
  settled bigint,
  final boolean NOT NULL DEFAULT false, -- cancelled with a result
  body  bytea NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX waits_by_run ON penstock.waits (run, id);
-- Settled waits of other kinds are found by their run only.
CREATE INDEX waits_by_time ON penstock.waits (kind, state, created, id) WHERE state = 'pending' OR kind = 'trigger';
CREATE INDEX waits_by_topic ON penstock.waits (topic, key, id) WHERE state = 'pending' AND topic IS NOT NULL;

CREATE TABLE penstock.states (
  key     text COLLATE "C" PRIMARY KEY,
  value   bytea  NOT NULL,
  version bigint NOT NULL CHECK (version BETWEEN 1 AND 1000000000000000),
  expires bigint
) WITH (fillfactor = 80);
CREATE INDEX states_expiring ON penstock.states (expires) WHERE expires IS NOT NULL;

CREATE TABLE penstock.schedules (
  id     text COLLATE "C" PRIMARY KEY,
  spec   bytea   NOT NULL,
  target bytea   NOT NULL,
  next   bigint,
  last   bigint,
  paused boolean NOT NULL,
  fired  bigint  NOT NULL CHECK (fired BETWEEN 0 AND 1000000000000000)
);
CREATE INDEX schedules_due ON penstock.schedules (next, id) WHERE next IS NOT NULL AND NOT paused;

CREATE TABLE penstock.once_keys (
  key text COLLATE "C" PRIMARY KEY,
  at  bigint NOT NULL
);
CREATE INDEX once_keys_by_time ON penstock.once_keys (at);

CREATE TABLE penstock.applied_units ( -- ids of units that leave no trace in a job or a run
  id text COLLATE "C" PRIMARY KEY,
  at bigint NOT NULL
);
CREATE INDEX applied_units_by_time ON penstock.applied_units (at);

-- Units handed in through the caller's connection, until the caller's transaction commits: see functions/enlist.sql. No row
-- outlives the transaction that wrote it, so the table needs no log.
CREATE UNLOGGED TABLE penstock.enlisted_units (
  tx   xid8 NOT NULL DEFAULT pg_current_xact_id(),
  n    bigint GENERATED ALWAYS AS IDENTITY,
  unit text NOT NULL,             -- one unit as JSON, bytea fields as base64
  PRIMARY KEY (tx, n)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
