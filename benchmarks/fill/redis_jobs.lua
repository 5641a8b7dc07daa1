-- Add finished jobs: the keys of BullMQ, and the field that finds a job by its id. Fields that only a running job needs are
-- left out, so that ten million jobs fit into the memory of a small machine.
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local queue, id = 'queue-' .. (i % ARGV[3]), 'old-' .. i
  redis.call('HSET', 'bull:' .. queue .. ':' .. id, 'name', 'old', 'data', '{"orderId":4711,"customer":"c-1042"}',
    'opts', '{}', 'timestamp', ARGV[4], 'processedOn', ARGV[4], 'finishedOn', ARGV[4], 'ats', '1', 'atm', '1', 'returnvalue', '{}')
  redis.call('ZADD', 'bull:' .. queue .. (i % 100 == 0 and ':failed' or ':completed'), ARGV[4], id)
  redis.call('HSET', 'nq:job_queues', id, queue)
end
