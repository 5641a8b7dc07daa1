-- Insert finished jobs, as a worker leaves them: a text id, a small input and a result. One in a hundred failed.
WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
INSERT INTO jobs (id, queue, name, state, priority, due, attempt, created, finished, unit, opts, payload, result)
SELECT 'old-' || i, 'queue-' || (i % ?3), 'old', CASE i % 100 WHEN 0 THEN 5 ELSE 4 END, 0, 0, 1, ?4, ?4, 'u-' || i,
       x'7b7d', CAST('{"orderId":4711,"customer":"c-1042"}' AS BLOB), x'7b7d'
FROM n
