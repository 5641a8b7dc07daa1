INSERT INTO penstock.finished_counts (queue, state, n)
SELECT queue, state, count(*) FROM penstock.jobs WHERE state >= 4 GROUP BY queue, state
