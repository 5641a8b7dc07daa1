-- Administration. ARGV[6] names the verb, the rest are its arguments.
local function arg(n) return ARGV[6 + n] end
local VERBS = {}

local function pause(queue, how)
  local base = base_key(queue)
  local broken = find_broken_key(base)
  if broken then error('NQQUEUE ' .. broken, 0) end -- BullMQ's script would stop half-way
  register_queue(queue)
  local from, to = 'wait', 'paused'
  if how == 'resumed' then from, to = 'paused', 'wait' end
  bull_pause({base .. from, base .. to, base .. 'meta', base .. 'prioritized', base .. 'events', base .. 'delayed',
    base .. 'marker'}, {how, '1'})
  notify('queue:' .. queue)
  return 1
end

function VERBS.pause() return pause(arg(1), 'paused') end
function VERBS.resume() return pause(arg(1), 'resumed') end

-- Start the windows of a queue's rate limits over. A full limiter is a hold: it stays.
function VERBS.reset_rates()
  local base = base_key(arg(1))
  call('DEL', base .. 'nq:rates', base .. 'nq:rate_ends')
  local saved = try('GET', base .. 'limiter')
  if type(saved) == 'table' or (tonumber(saved or '') or 0) < LIMITER_FULL then call('DEL', base .. 'limiter') end
  notify('queue:' .. arg(1))
  return 1
end

local function locate_job(id)
  local queue = readable_queue(id)
  if not queue then return end
  local base = base_key(queue)
  local state, set = job_state(base, id)
  return queue, base, state, set
end

function VERBS.promote()
  local id = arg(1)
  local queue, base, state, set = locate_job(id)
  if state ~= 'delayed' then return false end
  remove_from_state(base, id, set)
  call('HSET', base .. id, 'nq:due', 0, 'delay', 0)
  push_waiting(base, id, false, 'delayed')
  notify('queue:' .. queue)
  return queue
end

function VERBS.retry()
  local id = arg(1)
  local queue, base, state, set = locate_job(id)
  if (state ~= 'failed' and state ~= 'cancelled') or call('HEXISTS', base .. id, 'nq:run') == 1 then return false end
  remove_from_state(base, id, set)
  call('HDEL', base .. id, 'nq:failures', 'nq:crashes', 'nq:error', 'nq:unit', 'failedReason', 'finishedOn',
    'returnvalue', 'atm', 'stc')
  call('HSET', base .. id, 'nq:due', 0)
  reattach_to_parent(base .. id)
  local key = call('HGET', base .. id, 'nq:order_key')
  local is_held = key and order_head(base, key)
  if key then join_order(base, id, key, call('HGET', base .. id, 'nq:number'), is_held) end
  if is_held then
    notify('queue:' .. queue)
    return queue
  end
  if call('SCARD', base .. id .. ':dependencies') > 0 then
    push_waiting_children(base, id, call('HGET', base .. id, 'nq:number'))
  else
    push_waiting(base, id, false, state)
  end
  notify('queue:' .. queue)
  return queue
end

function VERBS.remove()
  local id = arg(1)
  local aside = find_set_aside(id)
  if aside then -- only the note of it: the key belongs to another program
    call('HDEL', base_key(aside) .. 'nq:set_aside', id)
    return aside
  end
  local queue, base, state, set = locate_job(id)
  if not queue or state == 'active' then return false end
  delete_unused_memos(delete_job(base, id, set))
  notify('queue:' .. queue)
  return queue
end

local function drain(base, ids, set)
  local removed = 0
  for _, id in ipairs(ids) do
    local is_step = try('HEXISTS', base .. id, 'nq:run')
    if type(is_step) == 'table' then
      read_failure(is_step)
      set_aside(base, id)
    elseif is_step == 0 then
      delete_unused_memos(delete_job(base, id, set))
      removed = removed + 1
    end
  end
  return removed
end

function VERBS.drain()
  local base = base_key(arg(1))
  -- Held jobs first: the job before them must not release them.
  local removed = drain(base, call('ZRANGE', base .. 'nq:held', 0, -1), 'nq:held')
    + drain(base, call('LRANGE', base .. 'wait', 0, -1))
    + drain(base, call('ZRANGE', base .. 'prioritized', 0, -1), 'prioritized')
  if arg(2) == '1' then removed = removed + drain(base, call('ZRANGE', base .. 'delayed', 0, -1), 'delayed') end
  return removed
end

function VERBS.remove_schedule()
  local id = arg(1)
  local row = read_fields(NS .. 'schedule:' .. id, 'spec', 'target', 'shown') or {}
  if call('EXISTS', NS .. 'schedule:' .. id) == 0 or is_schedule_removed(id) then return 0 end
  if arg(2) == '1' and ((row[1] or '') ~= arg(3) or (row[2] or '') ~= arg(4)) then return 0 end
  if row[3] then remove_scheduler(row[3], id) end
  forget_schedule(id)
  return 1
end

-- Remove a job scheduler of another program. Arguments: queue, id.
function VERBS.remove_foreign_schedule()
  local mark = read_fields(scheduler_key(arg(1), arg(2)), 'nq')
  if mark and mark[1] == NS then return 0 end
  return 1 - remove_scheduler(arg(1), arg(2))
end

-- Create the next job of another program's job scheduler. Arguments: queue, job, scheduler, due time, options.
function VERBS.advance()
  local base = base_key(arg(1))
  bull_updateJobScheduler({base .. 'repeat', base .. 'delayed', base .. 'wait', base .. 'paused', base .. 'meta',
    base .. 'prioritized', base .. 'marker', base .. 'id', base .. 'events', base .. 'pc', base .. arg(2),
    base .. 'active'}, {arg(4), arg(3), '', arg(5), now, base, arg(2)})
  notify('queue:' .. arg(1))
  return 1
end

function VERBS.trim() return trim(arg(1), arg(2), arg(3), tonumber(arg(4))) end

function VERBS.sweep()
  return sweep({runs_before = arg(1), keep_runs = arg(2), jobs_before = arg(3), keep_jobs = arg(4),
    keep_deliveries = arg(5), events_before = arg(6), keep_events = arg(7), limit = tonumber(arg(8)),
    once_key_ms = tonumber(arg(9)), unit_id_ms = tonumber(arg(10)), rate_ms = tonumber(arg(11))})
end
