-- Insert :n runs whose only step waits in the queue `probe`: half of them until :due, half for an event.

INSERT INTO runs (id, version, kind, flow, status, closed, created, updated, unit, record)
WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < :n)
SELECT format('sleeper-%08d', i), 1, 'flow', 'sleeper', 'running', 0, i, i, '', x'7b7d' FROM k;

INSERT INTO jobs (id, queue, name, state, priority, due, run, created, opts, payload, attempt)
SELECT id || '.s.1', 'probe', 's', 1 + 2 * (created % 2), 0, CASE created % 2 WHEN 0 THEN :due ELSE 0 END, id, created,
       x'7b7d', x'7b7d', 1
FROM runs WHERE flow = 'sleeper';

INSERT INTO waits (id, run, scope, kind, state, due, job, topic, key, pos, body)
SELECT 'e-' || id, id, id || '.s.1', 'event', 'pending', NULL, id || '.s.1', 'wake.up', format('%08d', created), 0, x'7b7d'
FROM runs WHERE flow = 'sleeper';
