-- The functions that claim jobs also name the queues without a due job.
SELECT 1;
