-- What the functions take and return, as composite types: a call has one array for each kind of row.
-- `unit`, `job` and `run` are positions, counted from 1, in the arrays `units`, `jobs`, `job_pks` and `run_ids` of the call.

CREATE TYPE penstock.new_unit AS (
  id text,
  is_remembered boolean,          -- enter its id in applied_units
  -- the fence
  job integer,                    -- in job_pks
  attempt integer,
  token text,
  needs_open_run boolean,         -- refuse it once the run is closed
  -- the write to the run record
  run integer,                    -- in run_ids
  expected_version bigint,        -- null: no write
  after_unit text,
  kind text,
  flow text,
  status text,
  closed boolean,
  paused boolean,
  cancels_jobs boolean,
  record bytea,
  -- the outcome of the attempt
  end_state smallint,             -- null: the attempt goes on
  failed smallint,
  due bigint,
  result json,
  error json,
  progress json,
  has_extras boolean,             -- has removes, cancels, wakes, waits, states, a schedule, a once key or children to check
  uncounted smallint              -- 1: the handler was not called, the next claim has the same attempt number
);

CREATE TYPE penstock.new_job AS (
  unit integer, id text, queue text, name text, payload json, priority bigint, due bigint, run text, scope text, opts bytea,
  started_stream text, started_prefix text, rate_key text, waits_for_children boolean, order_key text,
  error_group text
);

CREATE TYPE penstock.new_event AS (
  unit integer,
  job integer,                    -- append it only if this job of the call is added
  stream text, kind text, body json,
  original json                   -- if the body is redacted
);

CREATE TYPE penstock.topic_lock AS (key bigint, is_exclusive boolean);

-- The rarer parts of units.
CREATE TYPE penstock.new_memo AS (unit integer, scope text, name text, value bytea);
CREATE TYPE penstock.job_ref AS (unit integer, id text);
CREATE TYPE penstock.wait_change AS (
  unit integer, is_new boolean, id text, run text, scope text, kind text, state text, is_lenient boolean, due bigint, job text,
  topic text, key text, body bytea, is_final boolean
);
CREATE TYPE penstock.state_write AS (unit integer, key text, value bytea, expect bigint, expires bigint);
CREATE TYPE penstock.schedule_move AS (unit integer, id text, slot bigint, next bigint);
CREATE TYPE penstock.once_key AS (unit integer, key text);
CREATE TYPE penstock.new_dedupe AS (unit integer, job integer, id text, queue text, key text, ttl_ms bigint);
CREATE TYPE penstock.new_hold AS (unit integer, queue text, until bigint);
CREATE TYPE penstock.keep_limit AS (unit integer, pk bigint, queue text, state smallint, count integer, age_ms bigint);
CREATE TYPE penstock.new_child AS (unit integer, job integer, parent text, on_failure text, replaces text);
CREATE TYPE penstock.child_end AS (unit integer, parent text, child text, state smallint, value bytea, reason text);
CREATE TYPE penstock.order_ref AS (unit integer, queue text, key text);
CREATE TYPE penstock.job_cancel AS (unit integer, id text, error json, reason text, attempt integer);
CREATE TYPE penstock.run_key AS (unit integer, run text, key text);
CREATE TYPE penstock.run_parent AS (unit integer, parent text, root text, depth integer, call text);
CREATE TYPE penstock.unit_extras AS (
  memos penstock.new_memo[],
  removes penstock.job_ref[],
  wakes penstock.job_ref[],
  waits penstock.wait_change[],
  states penstock.state_write[],
  schedules penstock.schedule_move[],
  once_keys penstock.once_key[],
  dedupes penstock.new_dedupe[],
  holds penstock.new_hold[],
  keeps penstock.keep_limit[],
  trees integer[],                -- units that add a tree of jobs
  parents integer[],              -- units that complete a job with children
  children penstock.new_child[],
  child_ends penstock.child_end[],
  orders penstock.order_ref[],    -- keys of jobs that units add or end
  cancels penstock.job_cancel[],
  run_keys penstock.run_key[],
  run_parents penstock.run_parent[]
);

CREATE TYPE penstock.queue_demand AS (
  queue text, wanted integer, max_active integer, rate_max integer, rate_ms bigint, is_rate_per_key boolean
);
CREATE TYPE penstock.claim_request AS (
  worker text, lease_ms bigint, secret text, wanted integer,
  is_limited boolean,             -- one of the queues has max_active or a rate
  queues penstock.queue_demand[],
  only_runs text[],               -- only jobs of these runs and with these ids; null: any
  only_jobs text[]
);

-- What the functions return.
CREATE TYPE penstock.refusal AS (
  unit integer,
  version bigint, record bytea,   -- of the run, if that has another version
  why text, key text              -- else the precondition that failed
);
CREATE TYPE penstock.claimed_job AS (
  id text, queue text, name text, payload json, opts bytea, scope text, attempt integer, failures integer, crashes integer,
  pk bigint, run text, version bigint, record bytea, started_stream text, kind text
);
