-- Insert finished jobs, as a worker leaves them: a text id, a small input and a result. One in a hundred failed.
INSERT INTO penstock.jobs (pk, id, queue, name, state, priority, due, attempt, created, finished, unit, opts, payload, result)
SELECT nextval('penstock.jobs_pk'), 'old-' || i, 'queue-' || (i % $3), 'old', CASE i % 100 WHEN 0 THEN 5 ELSE 4 END, 0, 0, 1,
       $4::bigint, $4::bigint, 'u-' || i, '\x7b7d', '{"orderId":4711,"customer":"c-1042"}', '{}'
FROM generate_series($1::bigint, $2::bigint) AS i
