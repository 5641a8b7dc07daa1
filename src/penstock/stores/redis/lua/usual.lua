-- The usual case of what BullMQ's scripts do, in fewer calls: a job without parent, children, priority, delay or
-- deduplication, in a queue that is neither paused nor limited. The keys, fields and events are theirs; a test compares what
-- both leave behind. Whatever is not usual is done by their scripts.

-- The number a job arrives by: the first is taken by itself, those after it together.
local function next_number(queue)
  if queue.number then
    queue.more = queue.more + 1
  else
    queue.number, queue.more = call('INCR', queue.base .. 'id'), 0
  end
  return queue.number + queue.more
end

local function is_usual(job, delay)
  return delay == 0 and job.priority == 0 and not job.parent and not job.waits and not job.deduplicates
end

-- What the caller says of a job, and the id it was given, as BullMQ writes them.
local function options_of(job)
  local id = '"jobId":' .. cjson.encode(job.id) .. '}'
  if not job.options or job.options == '' then return '{' .. id end
  return string.sub(job.options, 1, -2) .. ',' .. id
end

-- As addStandardJob; gives the number the job has arrived by. `ours` are our own fields.
local function add_usual(queue, job, ours)
  local id, number = job.id, next_number(queue)
  call('HSET', queue.base .. id, 'name', job.name, 'data', job.payload, 'opts', options_of(job), 'timestamp', stamp,
    'delay', '0', 'priority', '0', 'nq:n', number, unpack(ours))
  call('XADD', queue.events, '*', 'event', 'added', 'jobId', id, 'name', job.name)
  write_later('LPUSH', queue.wait, id)
  queue.filled = true
  mark_work(queue)
  call('XADD', queue.events, 'MAXLEN', '~', queue.most, '*', 'event', 'waiting', 'jobId', id)
  return number
end

-- As moveToFinished; says whether the job was active. The caller writes the attempt with the fields of its own.
local function complete_usual(queue, id, value, score, fields)
  if call('LREM', queue.active, '-1', id) < 1 then return false end
  write_later('ZADD', queue.completed, score, id)
  call('HSET', queue.base .. id, 'returnvalue', value, 'finishedOn', stamp, unpack(fields))
  tell_completed(queue, id, value)
  queue.ended = queue.ended + 1
  if is_drained(queue) then call('XADD', queue.events, '*', 'event', 'drained') end
  return true
end

-- As moveToActive, for the job that is next in `wait`; changes what is known of it.
local function activate_usual(queue, id, job, worker, token, lease)
  local key = queue.base .. id
  call('RPOPLPUSH', queue.wait, queue.active)
  call('SET', key .. ':lock', token, 'PX', lease)
  call('XADD', queue.events, '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
  job.ats = tostring((job.ats or 0) + 1)
  call('HSET', key, 'processedOn', stamp, 'pb', worker, 'ats', job.ats, 'nq:t', token)
  mark_work(queue)
end
