-- Returns due, expired and stalled jobs to their queue, and repairs what other programs wrote and nobody can read.

-- Return whether HINCRBY can add to a value.
local function is_count(text) return #text < 14 and (text == '0' or string.find(text, '^[1-9]%d*$') ~= nil) end

-- Reset counts of a job that are no numbers. BullMQ's scripts add to them, and would stop in the middle.
local function repair_counts(key, job)
  for _, field in ipairs({'ats', 'atm', 'stc', 'nq:failures', 'nq:crashes'}) do
    if job[field] and not is_count(job[field]) then
      call('HSET', key, field, 0)
      job[field] = '0'
    end
  end
end

local MAX_KEY_LENGTH = 1024 -- BullMQ matches parts of it, in quadratic time

-- Remove the parent of a job if BullMQ's scripts cannot read it.
local function repair_parent(base, id, job)
  local key, is_readable, parent = job.parentKey, true, {id = '', queueKey = ''}
  if job.parent then is_readable, parent = pcall(cjson.decode, job.parent) end
  if is_readable and type(parent) == 'table' and type(parent.id) == 'string' and type(parent.queueKey) == 'string'
    and key and #key <= MAX_KEY_LENGTH and string.find(key, ':', 1, true) then return end
  call('HDEL', base .. id, 'parentKey', 'parent')
  job.parentKey, job.parent = nil, nil
  note_problem(string.sub(base, #BULL + 1, -2), 'repaired', 'job ' .. string.sub(id, 1, 100)
    .. ' has a parent that cannot be read; it was removed')
end

-- Move due jobs to their queue. Returns whether no due job is left.
local function promote_due(base)
  local due = call('ZRANGEBYSCORE', base .. 'delayed', '-inf', (now + 1) * 0x1000 - 1, 'LIMIT', 0, 1000)
  for _, id in ipairs(due) do
    call('ZREM', base .. 'delayed', id)
    local added = try('HSET', base .. id, 'delay', 0)
    if type(added) == 'table' then
      read_failure(added)
      set_aside(base, id)
    elseif added == 1 and call('HLEN', base .. id) == 1 then
      call('DEL', base .. id) -- the job was deleted before
    else
      push_waiting(base, id, false, 'delayed')
    end
  end
  call('ZREMRANGEBYSCORE', base .. 'nq:timed', '-inf', now)
  return #due < 1000
end

-- Return jobs with an expired lease to the front of the queue. A job that BullMQ's stalled check gave to another program
-- stays with that program.
local function recover_expired(base)
  local expired = call('ZRANGEBYSCORE', base .. 'nq:leases', '-inf', now, 'LIMIT', 0, 1000)
  for n = #expired, 1, -1 do
    local id = expired[n]
    local token, lock = try('HGET', base .. id, 'nq:token'), try('GET', base .. id .. ':lock')
    call('ZREM', base .. 'nq:leases', id)
    if type(token) == 'table' then
      read_failure(token)
      set_aside(base, id)
    elseif token then
      if type(lock) == 'table' then lock = nil end -- not a lock
      call('HSET', base .. id, 'nq:token', '')
      increment(base .. id, 'nq:crashes', 1)
      if not lock or lock == token then
        call('DEL', base .. id .. ':lock')
        if call('LREM', base .. 'active', -1, id) > 0 then
          push_waiting(base, id, true, 'active')
          call('XADD', base .. 'events', '*', 'event', 'stalled', 'jobId', id)
        end
      end
    end
  end
end

-- Recover jobs that a worker of another program lost: BullMQ's stalled check, as often as its workers run it.
local function recover_stalled(base)
  for _, id in ipairs(call('SMEMBERS', base .. 'stalled')) do
    local count = try('HGET', base .. id, 'stc')
    if type(count) == 'table' then
      read_failure(count)
      set_aside(base, id)
    elseif count and not is_count(count) then
      call('HSET', base .. id, 'stc', 0)
    end
  end
  bull_moveStalledJobsToWait({base .. 'stalled', base .. 'wait', base .. 'active', base .. 'stalled-check',
    base .. 'meta', base .. 'paused', base .. 'marker', base .. 'events', base .. 'repeat'}, {1, base, now, 30000})
end
