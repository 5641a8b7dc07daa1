-- BullMQ's add, finish and activate in fewer calls, for a job without parent, children, priority, delay or deduplication
-- in a queue that is neither paused nor limited. Keys, fields and events are BullMQ's; test_redis_fast_path.py compares what
-- both leave behind. All other jobs take BullMQ's scripts.

-- Return the next number of the queue. The first one is a call; flush_counts adds the others at once.
local function next_number(queue)
  if queue.first_number then
    queue.more_numbers = queue.more_numbers + 1
  else
    queue.first_number, queue.more_numbers = call('INCR', queue.base .. 'id'), 0
  end
  return queue.first_number + queue.more_numbers
end

local function is_fast_job(job, delay)
  return delay == 0 and job.priority == 0 and not job.parent and not job.has_children and not job.deduplicates
    and not job.is_held
end

-- Return the options of a job with its id, as BullMQ writes them.
local function bullmq_options(job)
  local id = '"jobId":' .. cjson.encode(job.id) .. '}'
  if not job.options or job.options == '' then return '{' .. id end
  return string.sub(job.options, 1, -2) .. ',' .. id
end

-- Add a job as addStandardJob does. Returns its number in the queue. `own_values` are our fields.
local function add_fast(queue, job, own_values)
  local id, number = job.id, next_number(queue)
  call('HSET', queue.base .. id, 'name', job.name, 'data', job.payload, 'opts', bullmq_options(job), 'timestamp',
    now_text, 'delay', '0', 'priority', '0', 'nq:number', number, unpack(own_values))
  careful_call('XADD', queue.events, '*', 'event', 'added', 'jobId', id, 'name', job.name)
  buffer_write('LPUSH', queue.wait, id)
  queue.has_waiting = true
  add_marker(queue)
  careful_call('XADD', queue.events, 'MAXLEN', '~', queue.max_events, '*', 'event', 'waiting', 'jobId', id)
  return number
end

-- Complete a job as moveToFinished does. Returns whether it was active. `more_values` are fields that the caller adds.
local function complete_fast(queue, id, value, score, more_values)
  if call('LREM', queue.active, '-1', id) < 1 then return false end
  buffer_write('ZADD', queue.completed, score, id)
  call('HSET', queue.base .. id, 'returnvalue', value, 'finishedOn', now_text, unpack(more_values))
  add_completed_event(queue, id, value)
  queue.completed_count = queue.completed_count + 1
  if is_drained(queue) then careful_call('XADD', queue.events, '*', 'event', 'drained') end
  return true
end

-- Activate the next job of `wait` as moveToActive does. Updates the attempt in `job`.
local function activate_fast(queue, id, job, worker, token, lease)
  local key = queue.base .. id
  call('RPOPLPUSH', queue.wait, queue.active)
  call('SET', key .. ':lock', token, 'PX', lease)
  careful_call('XADD', queue.events, '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
  job.ats = tostring(to_count(job.ats) + 1)
  call('HSET', key, 'processedOn', now_text, 'pb', worker, 'ats', job.ats, 'nq:token', token)
  add_marker(queue)
end
