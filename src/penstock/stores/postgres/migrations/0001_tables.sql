-- The tables. States: -1 held, 0 waiting, 1 delayed, 2 active, 3 suspended, 4 completed, 5 failed, 6 cancelled.
-- Times are milliseconds since the epoch. What people look into is json, which keeps a body's text as it came (jsonb would
-- write 1e2 as 100, change the order of keys and refuse \u0000); what only the engine reads is bytea.
-- Names sort by code point, as they do in the other stores. Fillfactors leave room for updates that touch no index.

CREATE TABLE penstock.streams (
  sid  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  seq  bigint NOT NULL,           -- the last sequence number given out
  ms   bigint NOT NULL            -- the last time given out: it never goes back
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

CREATE TABLE penstock.events (
  sid   bigint  NOT NULL,
  seq   bigint  NOT NULL,
  ms    bigint  NOT NULL,
  stamp bigint  NOT NULL,         -- of the transaction, taken while its streams were locked: the order of the feed
  n     integer NOT NULL,         -- the place among the events of that transaction
  kind  text COLLATE "C",         -- of events that others may wait for
  body  json    NOT NULL,
  PRIMARY KEY (sid, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.1);
CREATE UNIQUE INDEX events_feed ON penstock.events (stamp, n);
CREATE INDEX events_told ON penstock.events (kind, stamp, n) WHERE kind IS NOT NULL;

CREATE TABLE penstock.runs (
  id      text COLLATE "C" PRIMARY KEY,
  version bigint  NOT NULL,
  flow    text COLLATE "C" NOT NULL,
  status  text COLLATE "C" NOT NULL,
  closed  boolean NOT NULL,
  paused  boolean NOT NULL,
  created bigint  NOT NULL,
  updated bigint  NOT NULL,
  unit    text    NOT NULL,       -- the last unit applied: a repeated commit is recognised by it
  record  bytea   NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX runs_by_time ON penstock.runs (created, id);
CREATE INDEX runs_by_flow ON penstock.runs (flow, created, id);
CREATE INDEX runs_by_status ON penstock.runs (status, created, id);
CREATE INDEX runs_open ON penstock.runs (created) WHERE NOT closed;
CREATE INDEX runs_closed ON penstock.runs (created, id) WHERE closed;

CREATE SEQUENCE penstock.jobs_pk;
CREATE TABLE penstock.jobs (
  pk        bigint PRIMARY KEY,   -- order of arrival
  id        text COLLATE "C" NOT NULL UNIQUE,
  queue     text COLLATE "C" NOT NULL,
  name      text     NOT NULL,
  state     smallint NOT NULL,
  priority  bigint   NOT NULL,
  due       bigint   NOT NULL,
  attempt   integer  NOT NULL DEFAULT 0,
  failures  integer  NOT NULL DEFAULT 0,
  crashes   integer  NOT NULL DEFAULT 0,
  lease     bigint,
  token     text,
  unit      text,
  run       text COLLATE "C",
  scope     text COLLATE "C",
  rate_key  text,
  created   bigint   NOT NULL,
  finished  bigint,
  started_stream text COLLATE "C",
  started_head   text,
  opts      bytea    NOT NULL,
  payload   json     NOT NULL,
  progress  json,
  result    json,
  error     json
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- Partial indexes hold only what is alive: claims stay as fast with millions of finished jobs as with none.
CREATE INDEX jobs_waiting ON penstock.jobs (queue, priority, pk) WHERE state = 0;
CREATE INDEX jobs_delayed ON penstock.jobs (queue, due, pk) WHERE state = 1;
CREATE INDEX jobs_active ON penstock.jobs (queue, lease) WHERE state = 2;
CREATE INDEX jobs_asleep ON penstock.jobs (queue, state, pk) WHERE state IN (-1, 3);
CREATE INDEX jobs_finished ON penstock.jobs (queue, state, finished, pk) WHERE state >= 4;

CREATE TABLE penstock.queues (
  name   text COLLATE "C" PRIMARY KEY,
  paused boolean NOT NULL DEFAULT false
);

CREATE TABLE penstock.rates (
  queue text COLLATE "C" NOT NULL,
  key   text COLLATE "C" NOT NULL,
  until bigint  NOT NULL,         -- end of the window
  used  integer NOT NULL,
  PRIMARY KEY (queue, key)
) WITH (fillfactor = 70);

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
  state text COLLATE "C" NOT NULL, -- open, resolved, expired or cancelled
  due   bigint,
  job   text NOT NULL,            -- whom to wake
  topic text COLLATE "C",         -- the kind of event that may close it
  key   text COLLATE "C",         -- what that event must hold
  stamp bigint NOT NULL,          -- of the transaction that first opened it
  body  bytea NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX waits_by_run ON penstock.waits (run, id);
CREATE INDEX waits_pending ON penstock.waits (kind, id) WHERE state = 'pending';
CREATE INDEX waits_by_topic ON penstock.waits (topic, key, id) WHERE state = 'pending' AND topic IS NOT NULL;

CREATE TABLE penstock.states (
  key     text COLLATE "C" PRIMARY KEY,
  value   bytea  NOT NULL,
  version bigint NOT NULL,
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
  fired  bigint  NOT NULL
);
CREATE INDEX schedules_due ON penstock.schedules (next, id) WHERE next IS NOT NULL AND NOT paused;

CREATE TABLE penstock.once (
  key text COLLATE "C" PRIMARY KEY,
  at  bigint NOT NULL
);
CREATE INDEX once_by_time ON penstock.once (at);

CREATE TABLE penstock.units (     -- applied units that neither a job nor a run row remembers
  id text COLLATE "C" PRIMARY KEY,
  at bigint NOT NULL
);
CREATE INDEX units_by_time ON penstock.units (at);
