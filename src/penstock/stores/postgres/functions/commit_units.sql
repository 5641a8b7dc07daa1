-- The commit: applies units in order, claims the jobs asked for, then appends all events.
--
-- Units come in groups that end at the positions in `groups`. Within a group each unit is checked against what those before it
-- do; then one statement for each table writes the group. Locks are taken in one order: dedupe keys, order keys, topics, runs, jobs,
-- waits, states, queues with a limit, streams. The settings keep a plan made for empty tables from reading full ones.
CREATE OR REPLACE FUNCTION penstock.commit_units(
  now_override bigint, groups integer[], run_ids text[], job_pks bigint[], topics penstock.topic_lock[],
  units penstock.new_unit[], jobs penstock.new_job[], events penstock.new_event[], extras penstock.unit_extras,
  request penstock.claim_request,
  -- Verdicts: 0 applied, 1 applied before, 2 fenced, 3 the run has another version, 4 a precondition failed.
  OUT now bigint, OUT verdicts smallint[], OUT refusals penstock.refusal[], OUT added integer[], OUT key_holders text[],
  OUT event_times bigint[], OUT event_seqs bigint[], OUT deliveries integer, OUT woken text[],
  OUT claims penstock.claimed_job[], OUT claimed_memos penstock.new_memo[], OUT drained text[], OUT next_due bigint
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  unit_count integer := cardinality(units);
  has_extras boolean := NOT (extras IS NULL);
  u penstock.new_unit;
  j integer;
  r integer;
  first integer := 1;
  last integer;
  known text[];                   -- units in applied_units
  run_versions bigint[];
  run_closed boolean[];
  run_paused boolean[];
  run_units text[];
  run_exists boolean[];
  run_writers integer[];          -- the last unit of this call that writes the run
  run_writes smallint[];          -- by unit: 1 updates the run, 2 inserts it
  has_run_insert boolean := false;
  has_run_update boolean := false;
  job_states smallint[];
  job_attempts integer[];
  job_tokens text[];
  job_units text[];
  has_progress boolean := false;
  has_memory boolean := false;
  old_record bytea;
  why text;
  refused_key text;
  waits penstock.wait_change[];
  states penstock.state_write[];
  removes penstock.job_ref[];
  wakes penstock.job_ref[];
  schedules penstock.schedule_move[];
  once_keys penstock.once_key[];
  dedupes penstock.new_dedupe[];
  orders penstock.order_ref[];    -- order keys of jobs that are added, ended or removed
  cancels penstock.job_cancel[];
  cancelled_pk bigint;
  trees integer[];
  tree_jobs integer[];
  existing_job integer;
  parents integer[];
  skipped integer[];              -- jobs that are not added: their key is held, or their tree exists
  new_jobs integer[];
  new_queues text[];
  pks bigint[];
  written bigint[];
  taken bigint[] := '{}';
  claimed record;
  appended record;
  has_claimed_runs boolean := false;
  has_claimed_memos boolean := false;
  started_streams text[];
  started_bodies json[];
  streams text[] := '{}';
  kinds text[] := '{}';
  bodies json[] := '{}';
  originals json[] := '{}';
  claimed_run_jobs bigint[];
  unkept integer[] := '{}';       -- units whose job is removed as it ends
  removed_scopes text[];
  removed_ids text[];
BEGIN
  now := penstock.now_ms(now_override);
  added := '{}';
  woken := '{}';
  drained := '{}';
  deliveries := 0;
  IF has_extras THEN
    waits := extras.waits;
    states := extras.states;
    removes := extras.removes;
    wakes := extras.wakes;
    schedules := extras.schedules;
    once_keys := extras.once_keys;
    dedupes := extras.dedupes;
    trees := extras.trees;
    parents := extras.parents;
    orders := extras.orders;
    cancels := extras.cancels;
    IF cardinality(extras.keeps) > 0 THEN
      unkept := ARRAY(SELECT k.unit FROM unnest(extras.keeps) AS k WHERE k.count = 0);
    END IF;
    IF cardinality(dedupes) > 0 THEN
      PERFORM pg_advisory_xact_lock(k.lock) FROM (
        SELECT DISTINCT hashtextextended('penstock.dedupe_keys ' || d.queue || ' ' || d.key, 0) AS lock
        FROM unnest(dedupes) AS d ORDER BY 1) AS k;
      key_holders := array_fill(NULL::text, ARRAY[cardinality(dedupes)]);
      now := penstock.now_ms(now_override);
    END IF;
    IF cardinality(removes) > 0 THEN
      orders := orders || ARRAY(
        SELECT (x.unit, k.queue, k.order_key)::penstock.order_ref FROM unnest(removes) AS x JOIN penstock.jobs AS k ON k.id = x.id
        WHERE k.order_key IS NOT NULL);
    END IF;
    IF cardinality(cancels) > 0 THEN
      orders := orders || ARRAY(
        SELECT (x.unit, k.queue, k.order_key)::penstock.order_ref FROM unnest(cancels) AS x JOIN penstock.jobs AS k ON k.id = x.id
        WHERE k.order_key IS NOT NULL);
    END IF;
    IF cardinality(orders) > 0 THEN
      PERFORM penstock.lock_order_keys(orders);
      now := penstock.now_ms(now_override);
    END IF;
  END IF;
  IF unit_count > 0 THEN
    verdicts := array_fill(NULL::smallint, ARRAY[unit_count]);
    -- A commit that creates a wait for a kind of event excludes commits that append such an event: the second one sees the
    -- first. The locks come sorted.
    FOR i IN 1..cardinality(topics) LOOP
      IF topics[i].is_exclusive THEN
        PERFORM pg_advisory_xact_lock(topics[i].key);
      ELSE
        PERFORM pg_advisory_xact_lock_shared(topics[i].key);
      END IF;
    END LOOP;
  END IF;
  IF cardinality(run_ids) > 0 THEN
    run_writes := array_fill(0::smallint, ARRAY[unit_count]);
    -- The ids come sorted: if all exist, the locked rows correspond to them one for one.
    SELECT array_agg(h.version), array_agg(h.closed), array_agg(h.paused), array_agg(h.unit), array_agg(true)
    INTO run_versions, run_closed, run_paused, run_units, run_exists
    FROM (SELECT g.version, g.closed, g.paused, g.unit FROM penstock.runs AS g
          WHERE g.id = ANY (run_ids) ORDER BY g.id FOR UPDATE) AS h;
    IF cardinality(run_exists) IS DISTINCT FROM cardinality(run_ids) THEN
      SELECT array_agg(h.version), array_agg(h.closed), array_agg(h.paused), array_agg(h.unit), array_agg(h.id IS NOT NULL)
      INTO run_versions, run_closed, run_paused, run_units, run_exists
      FROM (SELECT g.* FROM unnest(run_ids) WITH ORDINALITY AS k (id, ord) LEFT JOIN penstock.runs AS g ON g.id = k.id
            ORDER BY k.ord) AS h;
    END IF;
    run_writers := array_fill(NULL::integer, ARRAY[cardinality(run_ids)]);
  END IF;
  IF cardinality(extras.child_ends) > 0 OR cardinality(parents) > 0 OR cardinality(cancels) > 0 THEN
    -- The parents, the claimed and the cancelled jobs, in one order.
    PERFORM 1 FROM penstock.jobs WHERE pk = ANY (job_pks || ARRAY(
      SELECT k.pk FROM unnest(extras.child_ends) AS e JOIN penstock.jobs AS k ON k.id = e.parent) || ARRAY(
      SELECT k.pk FROM unnest(cancels) AS c JOIN penstock.jobs AS k ON k.id = c.id) || ARRAY(
      SELECT k.pk FROM unnest(cancels) AS c JOIN penstock.children AS h ON h.child = c.id
      JOIN penstock.jobs AS k ON k.id = h.parent)) ORDER BY pk FOR UPDATE;
  END IF;
  IF cardinality(job_pks) > 0 THEN
    SELECT array_agg(h.state), array_agg(h.attempt), array_agg(h.token), array_agg(h.unit)
    INTO job_states, job_attempts, job_tokens, job_units
    FROM (SELECT g.state, g.attempt, g.token, g.unit FROM penstock.jobs AS g
          WHERE g.pk = ANY (job_pks) ORDER BY g.pk FOR UPDATE) AS h;
    IF cardinality(job_states) IS DISTINCT FROM cardinality(job_pks) THEN
      SELECT array_agg(h.state), array_agg(h.attempt), array_agg(h.token), array_agg(h.unit)
      INTO job_states, job_attempts, job_tokens, job_units
      FROM (SELECT g.state, g.attempt, g.token, g.unit FROM unnest(job_pks) WITH ORDINALITY AS k (pk, ord)
            LEFT JOIN penstock.jobs AS g ON g.pk = k.pk ORDER BY k.ord) AS h;
    END IF;
  END IF;
  IF cardinality(waits) > 0 THEN
    PERFORM 1 FROM penstock.waits AS k WHERE k.id IN (SELECT w.id FROM unnest(waits) AS w) ORDER BY k.id FOR UPDATE;
  END IF;
  IF cardinality(states) > 0 THEN
    PERFORM 1 FROM penstock.states AS k WHERE k.key IN (SELECT s.key FROM unnest(states) AS s) ORDER BY k.key FOR UPDATE;
  END IF;

  FOREACH last IN ARRAY groups LOOP
    has_run_insert := false;
    has_run_update := false;
    has_progress := false;
    IF cardinality(dedupes) > 0 THEN
      key_holders := penstock.find_key_holders(now, first, last, dedupes, key_holders);
      skipped := skipped || ARRAY(SELECT d.job FROM unnest(dedupes) WITH ORDINALITY AS d
                                  WHERE d.unit BETWEEN first AND last AND key_holders[d.ordinality::integer] IS NOT NULL);
    END IF;
    FOR i IN first..last LOOP
      u := units[i];
      IF u.is_remembered THEN
        IF NOT has_memory THEN
          has_memory := true;
          known := ARRAY(SELECT k.id FROM penstock.applied_units AS k
                         WHERE k.id IN (SELECT x.id FROM unnest(units) AS x WHERE x.is_remembered));
        END IF;
        IF u.id = ANY (known) THEN
          verdicts[i] := 1;
          CONTINUE;
        END IF;
      END IF;
      j := u.job;
      r := u.run;
      IF j IS NOT NULL THEN
        IF job_units[j] = u.id THEN
          verdicts[i] := 1;
          CONTINUE;
        END IF;
        -- An attempt of a cancelled run may end, but nothing follows the run's last event.
        IF job_states[j] IS DISTINCT FROM 2 OR job_tokens[j] <> u.token OR job_attempts[j] <> u.attempt
           OR (u.needs_open_run AND coalesce(run_closed[r], true)) THEN
          verdicts[i] := 2;
          CONTINUE;
        END IF;
      END IF;
      IF u.expected_version IS NOT NULL THEN
        IF run_units[r] = u.id THEN
          verdicts[i] := 1;
          CONTINUE;
        END IF;
        IF coalesce(run_versions[r], 0) <> u.expected_version
           OR (run_versions[r] IS NOT NULL AND u.after_unit IS NOT NULL AND u.after_unit <> run_units[r]) THEN
          verdicts[i] := 3;
          IF run_writers[r] IS NOT NULL THEN
            old_record := units[run_writers[r]].record;
          ELSE
            SELECT k.record INTO old_record FROM penstock.runs AS k WHERE k.id = run_ids[r];
          END IF;
          refusals := refusals || (i, coalesce(run_versions[r], 0), old_record, NULL, NULL)::penstock.refusal;
          CONTINUE;
        END IF;
      END IF;
      IF u.has_extras THEN
        SELECT c.why, c.key INTO why, refused_key
        FROM penstock.check_preconditions(i, now, removes, waits, states, schedules, once_keys) AS c;
        IF why IS NULL AND i = ANY (parents) AND EXISTS (
          SELECT 1 FROM penstock.jobs AS p JOIN penstock.children AS c ON c.parent = p.id
          WHERE p.pk = job_pks[j] AND c.state IN (0, 3)) THEN
          SELECT 'children', p.id INTO why, refused_key FROM penstock.jobs AS p WHERE p.pk = job_pks[j];
        END IF;
        IF why IS NULL AND cardinality(cancels) > 0 THEN
          SELECT 'taken', c.id INTO why, refused_key
          FROM unnest(cancels) WITH ORDINALITY AS c LEFT JOIN penstock.jobs AS k
            ON k.id = c.id AND k.state < 4 AND (c.attempt IS NULL OR k.attempt = c.attempt)
          WHERE c.unit = i AND k.pk IS NULL ORDER BY c.ordinality LIMIT 1;
        END IF;
        IF why IS NULL AND i = ANY (trees) THEN
          tree_jobs := ARRAY(SELECT n.ordinality FROM unnest(jobs) WITH ORDINALITY AS n WHERE n.unit = i ORDER BY n.ordinality);
          SELECT n.ordinality, n.id INTO existing_job, refused_key
          FROM unnest(jobs) WITH ORDINALITY AS n JOIN penstock.jobs AS k ON k.id = n.id
          WHERE n.unit = i ORDER BY n.ordinality LIMIT 1;
          IF existing_job = tree_jobs[1] THEN
            skipped := skipped || tree_jobs;
          ELSIF existing_job IS NOT NULL THEN
            why := 'job';
          END IF;
        END IF;
        IF why IS NOT NULL THEN
          verdicts[i] := 4;
          refusals := refusals || (i, NULL, NULL, why, refused_key)::penstock.refusal;
          CONTINUE;
        END IF;
      END IF;

      verdicts[i] := 0;
      IF u.is_remembered THEN
        known := array_append(known, u.id);
      END IF;
      IF u.expected_version IS NOT NULL THEN
        IF run_writers[r] >= first THEN
          run_writes[run_writers[r]] := 0;
        END IF;
        IF run_exists[r] THEN
          run_writes[i] := 1;
          has_run_update := true;
        ELSE
          run_writes[i] := 2;
          has_run_insert := true;
        END IF;
        run_writers[r] := i;
        IF run_paused[r] AND NOT u.paused THEN
          WITH released AS (
            UPDATE penstock.jobs SET state = CASE WHEN due > now THEN 1 ELSE 0 END
            WHERE id > run_ids[r] || '.' AND id < run_ids[r] || '/' AND run = run_ids[r] AND state = -1 RETURNING queue)
          SELECT woken || array_agg(queue) INTO woken FROM released;
        END IF;
        run_versions[r] := u.expected_version + 1;
        run_closed[r] := u.closed;
        run_paused[r] := u.paused;
        run_units[r] := u.id;
        IF u.cancels_jobs THEN
          WITH ended AS (
            UPDATE penstock.jobs SET state = 6, finished = now, unit = u.id
            WHERE id > run_ids[r] || '.' AND id < run_ids[r] || '/' AND run = run_ids[r] AND state IN (-1, 0, 1, 3)
            RETURNING queue)
          INSERT INTO penstock.finished_counts (queue, state, n) SELECT e.queue, 6, count(*) FROM ended AS e GROUP BY e.queue;
        END IF;
      END IF;
      IF j IS NOT NULL AND u.end_state IS NOT NULL THEN
        job_states[j] := u.end_state;
        job_units[j] := u.id;
      END IF;
      has_progress := has_progress OR u.progress IS NOT NULL;
      IF u.has_extras THEN
        DELETE FROM penstock.jobs WHERE id IN (SELECT x.id FROM unnest(removes) AS x WHERE x.unit = i)
          AND (state IN (0, 1, 3, 5) OR (state = -1 AND order_key IS NOT NULL));
        IF cardinality(cancels) > 0 THEN
          FOR cancelled_pk IN
            WITH ended AS (
              UPDATE penstock.jobs AS k SET state = 6, finished = now, unit = u.id, error = c.error, lease = NULL
              FROM unnest(cancels) AS c WHERE c.unit = i AND k.id = c.id AND k.state < 4 RETURNING k.pk, k.queue),
            counted AS (
              INSERT INTO penstock.finished_counts (queue, state, n) SELECT e.queue, 6, count(*) FROM ended AS e GROUP BY e.queue)
            SELECT e.pk FROM ended AS e LOOP
            -- A later unit of this call may end the attempt that runs it: it is fenced.
            IF cancelled_pk = ANY (job_pks) THEN
              job_states[array_position(job_pks, cancelled_pk)] := 6;
            END IF;
          END LOOP;
          woken := woken || penstock.end_children(now, ARRAY(
            SELECT (c.unit, h.parent, c.id, 5, NULL, c.reason)::penstock.child_end
            FROM unnest(cancels) AS c JOIN penstock.children AS h ON h.child = c.id AND h.state = 0 WHERE c.unit = i));
        END IF;
        WITH called AS (
          UPDATE penstock.jobs SET state = 0, due = 0
          WHERE id IN (SELECT x.id FROM unnest(wakes) AS x WHERE x.unit = i) AND state IN (1, 3)
          RETURNING queue)
        SELECT woken || array_agg(queue) INTO woken FROM called;
        PERFORM penstock.write_waits(i, now, waits);
        PERFORM penstock.write_states(i, now, states);
        UPDATE penstock.schedules AS s SET next = m.next, last = m.slot, fired = s.fired + 1
        FROM unnest(schedules) AS m WHERE m.unit = i AND s.id = m.id;
        INSERT INTO penstock.once_keys (key, at) SELECT o.key, now FROM unnest(once_keys) AS o WHERE o.unit = i;
      END IF;
      -- After the unit's own waits: a wait that the last unit of a run resolves is not cancelled.
      IF u.expected_version IS NOT NULL AND u.closed THEN
        UPDATE penstock.waits SET state = 'cancelled', settled = now WHERE run = run_ids[r] AND state = 'pending';
      END IF;
    END LOOP;

    IF has_run_insert THEN
      INSERT INTO penstock.runs (id, version, kind, flow, status, closed, paused, created, updated, ended, unit, record)
      SELECT run_ids[x.run], x.expected_version + 1, x.kind, x.flow, x.status, x.closed, x.paused, now, now,
             CASE WHEN x.closed THEN now END, x.id, x.record
      FROM unnest(units) WITH ORDINALITY AS x
      WHERE x.ordinality BETWEEN first AND last AND run_writes[x.ordinality] = 2 ORDER BY run_ids[x.run];
      IF cardinality(extras.run_parents) > 0 THEN
        UPDATE penstock.runs AS k SET parent = p.parent, root = p.root, depth = p.depth, call = p.call
        FROM unnest(extras.run_parents) AS p
        WHERE p.unit BETWEEN first AND last AND verdicts[p.unit] = 0 AND k.id = run_ids[units[p.unit].run];
      END IF;
      FOR i IN first..last LOOP
        IF run_writes[i] = 2 THEN
          run_exists[units[i].run] := true;
        END IF;
      END LOOP;
    END IF;
    IF has_run_update THEN
      UPDATE penstock.runs AS k SET version = x.expected_version + 1, status = x.status, closed = x.closed,
        ended = CASE WHEN x.closed THEN now END,
                                    paused = x.paused, updated = now, unit = x.id, record = x.record
      FROM unnest(units) WITH ORDINALITY AS x
      WHERE x.ordinality BETWEEN first AND last AND run_writes[x.ordinality] = 1 AND k.id = run_ids[x.run];
    END IF;
    IF cardinality(job_pks) > 0 THEN
      WITH ended AS (
        UPDATE penstock.jobs AS k SET
          state = CASE WHEN x.end_state = 0 AND x.due > now THEN 1 ELSE x.end_state END,
          due = coalesce(x.due, k.due),
          finished = CASE WHEN x.end_state >= 4 THEN now END,
          unit = x.id, result = x.result, error = coalesce(x.error, k.error), failures = least(k.failures, 2147483646) + x.failed,
          attempt = k.attempt - x.uncounted, lease = NULL
        FROM unnest(units) WITH ORDINALITY AS x
        WHERE x.ordinality BETWEEN first AND last AND x.end_state IS NOT NULL AND verdicts[x.ordinality] = 0
          AND k.pk = job_pks[x.job] AND x.ordinality <> ALL (unkept)
        RETURNING k.queue, k.state)
      INSERT INTO penstock.finished_counts (queue, state, n)
      SELECT e.queue, e.state, count(*) FROM ended AS e WHERE e.state >= 4 GROUP BY e.queue, e.state;
    END IF;
    IF cardinality(unkept) > 0 THEN
      -- Its end is never written: a row that is removed at once would only leave dead entries in the indexes.
      WITH removed AS (
        DELETE FROM penstock.jobs AS k USING unnest(units) WITH ORDINALITY AS x
        WHERE x.ordinality BETWEEN first AND last AND x.ordinality = ANY (unkept) AND verdicts[x.ordinality] = 0
          AND k.pk = job_pks[x.job]
        RETURNING coalesce(k.scope, k.id) AS scope, k.id)
      SELECT array_agg(m.scope), array_agg(m.id) INTO removed_scopes, removed_ids FROM removed AS m;
    END IF;
    IF has_progress THEN
      UPDATE penstock.jobs AS k SET progress = x.progress
      FROM (SELECT DISTINCT ON (p.job) p.job, p.progress FROM unnest(units) WITH ORDINALITY AS p
            WHERE p.ordinality BETWEEN first AND last AND verdicts[p.ordinality] = 0 AND p.progress IS NOT NULL
              AND p.job IS NOT NULL
            ORDER BY p.job, p.ordinality DESC) AS x
      WHERE k.pk = job_pks[x.job];
    END IF;
    IF cardinality(jobs) > 0 THEN
      -- Keys are assigned in order of arrival, rows are written in order of ids: two transactions that add the same jobs lock
      -- them in the same order.
      SELECT coalesce(array_agg(n.ordinality), '{}'), array_agg(nextval('penstock.jobs_pk')), array_agg(DISTINCT n.queue)
      INTO new_jobs, pks, new_queues FROM (
        SELECT x.ordinality, x.queue FROM unnest(jobs) WITH ORDINALITY AS x
        WHERE x.unit BETWEEN first AND last AND verdicts[x.unit] = 0
          AND (skipped IS NULL OR x.ordinality <> ALL (skipped)) ORDER BY x.ordinality) AS n;
      INSERT INTO penstock.queues (name)
      SELECT n.name FROM unnest(new_queues) AS n (name)
      WHERE NOT EXISTS (SELECT 1 FROM penstock.queues AS q WHERE q.name = n.name) ORDER BY n.name COLLATE "C"
      ON CONFLICT (name) DO NOTHING;
      WITH inserted AS (
        INSERT INTO penstock.jobs (pk, id, queue, name, state, priority, due, run, scope, rate_key, created, started_stream,
                                   started_prefix, opts, payload, order_key, error_group)
        SELECT n.pk, n.id, n.queue, n.name,
               CASE WHEN n.waits_for_children THEN -2 WHEN n.order_key IS NOT NULL THEN -1 WHEN n.due > now THEN 1 ELSE 0 END,
               n.priority, n.due, n.run, n.scope, n.rate_key, now, n.started_stream, n.started_prefix, n.opts, n.payload,
               n.order_key, n.error_group
        FROM (SELECT pks[row_number() OVER (ORDER BY o.ordinality)] AS pk, o.*
              FROM unnest(jobs) WITH ORDINALITY AS o
              WHERE o.unit BETWEEN first AND last AND verdicts[o.unit] = 0
                AND (skipped IS NULL OR o.ordinality <> ALL (skipped))) AS n
        ORDER BY n.id COLLATE "C", n.pk
        ON CONFLICT (id) DO NOTHING RETURNING pk)
      SELECT array_agg(w.pk) INTO written FROM inserted AS w;
      IF coalesce(cardinality(written), 0) < cardinality(pks) THEN
        new_jobs := ARRAY(SELECT n.ord FROM unnest(new_jobs, pks) AS n (ord, pk) WHERE n.pk = ANY (written) ORDER BY n.ord);
        IF EXISTS (SELECT 1 FROM unnest(jobs) WITH ORDINALITY AS n
                   WHERE n.unit BETWEEN first AND last AND n.unit = ANY (trees) AND verdicts[n.unit] = 0
                     AND n.ordinality <> ALL (new_jobs) AND (skipped IS NULL OR n.ordinality <> ALL (skipped))) THEN
          RAISE serialization_failure USING MESSAGE = 'another transaction has added a job of this tree';
        END IF;
      END IF;
      added := added || new_jobs;
    END IF;
    IF has_extras THEN
      IF cardinality(extras.children) > 0 THEN
        PERFORM penstock.add_children(jobs, new_jobs, extras.children);
      END IF;
      IF cardinality(extras.run_keys) > 0 THEN
        INSERT INTO penstock.run_keys (key, created, run)
        SELECT k.key, r.created, r.id FROM unnest(extras.run_keys) AS k JOIN penstock.runs AS r ON r.id = k.run
        WHERE k.unit BETWEEN first AND last AND verdicts[k.unit] = 0 ORDER BY k.key, r.created, r.id
        ON CONFLICT (key, created, run) DO NOTHING;
      END IF;
      IF cardinality(extras.memos) > 0 THEN
        INSERT INTO penstock.memos (scope, name, value)
        SELECT m.scope, m.name, m.value FROM unnest(extras.memos) WITH ORDINALITY AS m
        WHERE m.unit BETWEEN first AND last AND verdicts[m.unit] = 0 ORDER BY m.scope, m.name, m.ordinality
        ON CONFLICT (scope, name) DO NOTHING;
      END IF;
      IF cardinality(dedupes) > 0 THEN
        INSERT INTO penstock.dedupe_keys AS k (queue, key, job, until)
        SELECT DISTINCT ON (d.queue, d.key) d.queue, d.key, d.id, now + d.ttl_ms FROM unnest(dedupes) AS d
        WHERE d.job = ANY (new_jobs) ORDER BY d.queue, d.key, d.job DESC
        ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, until = excluded.until;
      END IF;
      IF cardinality(extras.holds) > 0 THEN
        INSERT INTO penstock.queue_holds AS g (queue, until)
        SELECT h.queue, max(h.until) FROM unnest(extras.holds) AS h
        WHERE h.unit BETWEEN first AND last AND verdicts[h.unit] = 0 GROUP BY h.queue ORDER BY h.queue
        ON CONFLICT (queue) DO UPDATE SET until = greatest(g.until, excluded.until);
      END IF;
      IF cardinality(extras.child_ends) > 0 THEN
        woken := woken || penstock.end_children(now, ARRAY(
          SELECT e FROM unnest(extras.child_ends) AS e
          WHERE e.unit BETWEEN first AND last AND verdicts[e.unit] = 0));
      END IF;
      IF cardinality(orders) > 0 THEN
        -- New jobs were added as held: the first one of a free key is released here too.
        woken := woken || penstock.release_order_heads(now, ARRAY(
          SELECT o FROM unnest(orders) AS o WHERE o.unit BETWEEN first AND last AND verdicts[o.unit] = 0));
      END IF;
      IF cardinality(extras.keeps) > 0 THEN
        -- After the parents were informed: they do not wait for a child that is gone.
        IF removed_ids IS NOT NULL THEN
          PERFORM penstock.forget_jobs(now, removed_scopes, removed_ids);
        END IF;
        IF cardinality(unkept) < cardinality(extras.keeps) THEN
          PERFORM penstock.remove_finished(now, ARRAY(
            SELECT k FROM unnest(extras.keeps) AS k
            WHERE k.unit BETWEEN first AND last AND verdicts[k.unit] = 0 AND k.count IS DISTINCT FROM 0));
        END IF;
      END IF;
    END IF;
    first := last + 1;
  END LOOP;
  IF has_memory THEN
    INSERT INTO penstock.applied_units (id, at)
    SELECT x.id, now FROM unnest(units) WITH ORDINALITY AS x
    WHERE x.is_remembered AND verdicts[x.ordinality] = 0 ORDER BY x.id;
  END IF;

  IF request.worker IS NOT NULL THEN
    claimed := penstock.claim_jobs(now, request);
    taken := claimed.taken;
    drained := claimed.drained;
    next_due := claimed.next_due;
  END IF;
  IF cardinality(events) > 0 THEN
    SELECT coalesce(array_agg(x.stream), '{}'), coalesce(array_agg(x.kind), '{}'), coalesce(array_agg(x.body), '{}'),
           coalesce(array_agg(x.original), '{}')
    INTO streams, kinds, bodies, originals FROM (
      SELECT e.stream, e.kind, e.body, e.original FROM unnest(events) WITH ORDINALITY AS e
      WHERE verdicts[e.unit] = 0 AND (e.job IS NULL OR e.job = ANY (added)) ORDER BY e.ordinality) AS x;
  END IF;
  LOOP
    claims := NULL;
    claimed_run_jobs := '{}';
    started_streams := NULL;
    IF cardinality(taken) > 0 THEN
      SELECT array_agg((k.id, k.queue, k.name, k.payload, k.opts, coalesce(k.scope, k.id), k.attempt, k.failures, k.crashes,
                        k.pk, k.run, 0, NULL, k.started_stream, NULL)::penstock.claimed_job),
             bool_or(k.attempt > 1 OR k.unit IS NOT NULL OR k.scope IS NOT NULL), bool_or(k.run IS NOT NULL),
             array_agg(k.started_stream) FILTER (WHERE k.started_stream IS NOT NULL),
             array_agg((k.started_prefix || '"attempt":' || k.attempt || ',"worker":"' || request.worker || '"}}')::json)
               FILTER (WHERE k.started_stream IS NOT NULL)
      INTO claims, has_claimed_memos, has_claimed_runs, started_streams, started_bodies
      FROM (SELECT g.* FROM unnest(taken) WITH ORDINALITY AS c (pk, ord) JOIN penstock.jobs AS g ON g.pk = c.pk
            ORDER BY c.ord) AS k;
      IF has_claimed_runs THEN
        claimed_run_jobs := taken;
      END IF;
    END IF;
    EXIT WHEN cardinality(streams) = 0 AND started_streams IS NULL AND cardinality(claimed_run_jobs) = 0;
    IF started_streams IS NULL THEN
      appended := penstock.append_events(now, streams, kinds, bodies, originals, cardinality(topics) > 0, claimed_run_jobs);
    ELSE
      appended := penstock.append_events(
        now, streams || started_streams, kinds || array_fill(NULL::text, ARRAY[cardinality(started_streams)]),
        bodies || started_bodies, originals, cardinality(topics) > 0, claimed_run_jobs);
    END IF;
    event_times := appended.event_times;
    event_seqs := appended.event_seqs;
    deliveries := appended.deliveries;
    EXIT WHEN appended.dropped IS NULL;
    -- Rare: again, without the jobs whose runs were closed or paused meanwhile.
    taken := ARRAY(SELECT c.pk FROM unnest(taken) WITH ORDINALITY AS c (pk, ord)
                   WHERE c.pk <> ALL (appended.dropped) ORDER BY c.ord);
  END LOOP;
  IF claims IS NOT NULL AND has_claimed_runs THEN
    claims := ARRAY(
      SELECT (c.id, c.queue, c.name, c.payload, c.opts, c.scope, c.attempt, c.failures, c.crashes, c.pk, c.run,
              coalesce(k.version, 0), k.record, c.started_stream, k.kind)::penstock.claimed_job
      FROM unnest(claims) WITH ORDINALITY AS c LEFT JOIN penstock.runs AS k ON k.id = c.run ORDER BY c.ordinality);
  END IF;
  IF claims IS NOT NULL AND has_claimed_memos THEN
    claimed_memos := ARRAY(
      SELECT (NULL, m.scope, m.name, m.value)::penstock.new_memo
      FROM (SELECT DISTINCT c.scope FROM unnest(claims) AS c) AS w
      JOIN penstock.memos AS m ON m.scope = w.scope);
  END IF;
END $$;
