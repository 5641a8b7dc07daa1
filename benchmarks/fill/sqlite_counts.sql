INSERT INTO finished_counts (queue, state, n)
SELECT queue, state, count(*) FROM jobs WHERE state >= 4 GROUP BY queue, state
