-- Administration: ARGV[6] names the verb, the rest is its own.
local function arg(n) return ARGV[6 + n] end
local VERBS = {}

local function pause(queue, how)
  local base = base_of(queue)
  know_queue(queue)
  local from, to = 'wait', 'paused'
  if how == 'resumed' then from, to = 'paused', 'wait' end
  bull_pause({base .. from, base .. to, base .. 'meta', base .. 'prioritized', base .. 'events', base .. 'delayed',
    base .. 'marker'}, {how, '1'})
  touch('queue:' .. queue)
  return 1
end

function VERBS.pause() return pause(arg(1), 'paused') end
function VERBS.resume() return pause(arg(1), 'resumed') end

local function located(id)
  local queue = find_queue(id)
  if not queue then return end
  local base = base_of(queue)
  local state, set = state_of(base, id)
  return queue, base, state, set
end

function VERBS.promote()
  local id = arg(1)
  local queue, base, state, set = located(id)
  if state ~= 'delayed' then return false end
  pull(base, id, set)
  call('HSET', base .. id, 'nq:d', 0, 'delay', 0)
  push(base, id, false, 'delayed')
  touch('queue:' .. queue)
  return queue
end

function VERBS.retry()
  local id = arg(1)
  local queue, base, state, set = located(id)
  if (state ~= 'failed' and state ~= 'cancelled') or call('HEXISTS', base .. id, 'nq:r') == 1 then return false end
  pull(base, id, set)
  call('HDEL', base .. id, 'nq:f', 'nq:c', 'nq:e', 'nq:u', 'failedReason', 'finishedOn', 'returnvalue', 'atm', 'stc')
  call('HSET', base .. id, 'nq:d', 0)
  back_to_parent(base .. id)
  if call('SCARD', base .. id .. ':dependencies') > 0 then
    park(base, id, call('HGET', base .. id, 'nq:n'))
  else
    push(base, id, false, state)
  end
  touch('queue:' .. queue)
  return queue
end

function VERBS.remove()
  local id = arg(1)
  local queue, base, state, set = located(id)
  if not queue or state == 'active' then return false end
  forget_memos(delete_job(base, id, set))
  touch('queue:' .. queue)
  return queue
end

local function drain(base, ids, set)
  local gone = 0
  for _, id in ipairs(ids) do
    if call('HEXISTS', base .. id, 'nq:r') == 0 then
      forget_memos(delete_job(base, id, set))
      gone = gone + 1
    end
  end
  return gone
end

function VERBS.drain()
  local base = base_of(arg(1))
  local gone = drain(base, call('LRANGE', base .. 'wait', 0, -1))
    + drain(base, call('ZRANGE', base .. 'prioritized', 0, -1), 'prioritized')
  if arg(2) == '1' then gone = gone + drain(base, call('ZRANGE', base .. 'delayed', 0, -1), 'delayed') end
  return gone
end

function VERBS.remove_schedule()
  local id = arg(1)
  local row = call('HMGET', NS .. 'schedule:' .. id, 'spec', 'target')
  if not row[1] or (arg(2) == '1' and (row[1] ~= arg(3) or row[2] ~= arg(4))) then return 0 end
  call('DEL', NS .. 'schedule:' .. id)
  call('ZREM', NS .. 'schedules', id)
  call('ZREM', NS .. 'schedules:due', id)
  return 1
end

-- The job after this one of a scheduler that another program has set up: queue, job, scheduler, when, its options.
function VERBS.advance()
  local base = base_of(arg(1))
  bull_updateJobScheduler({base .. 'repeat', base .. 'delayed', base .. 'wait', base .. 'paused', base .. 'meta',
    base .. 'prioritized', base .. 'marker', base .. 'id', base .. 'events', base .. 'pc', base .. arg(2),
    base .. 'active'}, {arg(4), arg(3), '', arg(5), now, base, arg(2)})
  touch('queue:' .. arg(1))
  return 1
end

-- The oldest events beyond a count or an age. The head keeps counting when none is left.
local function trim(stream, keep, before)
  local gone = 0
  if call('EXISTS', stream) == 0 then return 0 end
  if keep ~= '' then gone = gone + call('XTRIM', stream, 'MAXLEN', keep) end
  if before ~= '' then gone = gone + call('XTRIM', stream, 'MINID', before .. '-0') end
  return gone
end

function VERBS.trim() return trim(arg(1), arg(2), arg(3)) end

-- Retention, in batches small enough that no commit waits long for them.

local function alive(run)
  for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run .. ':jobs', 0, -1)) do
    local queue = queue_of(id)
    local lease = queue and call('ZSCORE', base_of(queue) .. 'nq:leases', id)
    if lease and tonumber(lease) > now then return true end
  end
  return false
end

local function forget_state(key)
  call('DEL', NS .. 'state:' .. key)
  call('ZREM', NS .. 'states', key)
  call('ZREM', NS .. 'states:due', key)
end

local function forget_stream(stream)
  local gone = call('XLEN', stream)
  call('DEL', stream)
  call('HDEL', NS .. 'heads', stream)
  call('ZREM', NS .. 'streams', stream)
  return gone
end

local function forget_run_jobs(run)
  local gone = 0
  for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run .. ':jobs', 0, -1)) do
    local queue = queue_of(id)
    if queue then
      local base = base_of(queue)
      local state, set = state_of(base, id)
      if state == 'active' then
        let_go(base, id)
        call('LREM', base .. 'active', -1, id)
      end
      call('DEL', NS .. 'memos:' .. delete_job(base, id, set))
      gone = gone + 1
    end
  end
  return gone
end

local function forget_run(run, gone)
  local key = NS .. 'run:' .. run
  gone.events = gone.events + forget_stream(NS .. 'flow:' .. run)
  gone.jobs = gone.jobs + forget_run_jobs(run)
  for _, id in ipairs(call('ZRANGE', key .. ':waits', 0, -1)) do
    local wait = fields(call('HGETALL', NS .. 'wait:' .. id))
    if wait.kind == 'trigger' then gone.events = gone.events + forget_stream(NS .. 'trigger:' .. id) end
    call('DEL', NS .. 'wait:' .. id)
    if wait.kind then call('ZREM', NS .. 'waits:' .. wait.kind, id) end
    if wait.topic then
      call('ZREM', NS .. 'topic:' .. wait.topic, id)
      call('ZREM', NS .. 'topickeys:' .. wait.topic, (wait.key or '') .. '\n' .. id)
    end
  end
  for _, state in ipairs(call('ZRANGEBYLEX', NS .. 'states', '[run/' .. run .. '/', '(run/' .. run .. '0')) do
    forget_state(state)
    gone.states = gone.states + 1
  end
  local row = call('HMGET', key, 'flow', 'status')
  for _, list in ipairs({'runs', 'runs:closed', 'runs:open', 'runs:flow:' .. row[1], 'runs:status:' .. row[2]}) do
    call('ZREM', NS .. list, run)
  end
  call('DEL', key, key .. ':jobs', key .. ':waits')
  gone.runs = gone.runs + 1
end

local function sweep_runs(before, keep, limit, gone)
  local doomed, chosen = {}, {}
  local function choose(run)
    if not chosen[run] and #doomed < limit and not alive(run) then
      chosen[run] = true
      doomed[#doomed + 1] = run
    end
  end
  if before ~= '' then
    for _, run in ipairs(call('ZRANGEBYSCORE', NS .. 'runs:closed', '-inf', '(' .. before, 'LIMIT', 0, limit * 10)) do
      if tonumber(call('HGET', NS .. 'run:' .. run, 'updated')) < tonumber(before) then choose(run) end
    end
  end
  if keep ~= '' then
    local surplus = call('ZCARD', NS .. 'runs:closed') - tonumber(keep)
    if surplus > 0 then
      for _, run in ipairs(call('ZRANGE', NS .. 'runs:closed', 0, math.min(surplus, limit * 10) - 1)) do choose(run) end
    end
  end
  for _, run in ipairs(doomed) do forget_run(run, gone) end
end

local FINISHED = {'completed', 'failed', 'nq:cancelled'}

-- Finished jobs of a queue that belong to no run, oldest first, over all three states.
local function finished_jobs(base, high, most)
  local found = {}
  for _, set in ipairs(FINISHED) do
    local flat = call('ZRANGEBYSCORE', base .. set, '-inf', high, 'WITHSCORES')
    for n = 1, #flat, 2 do
      if call('HEXISTS', base .. flat[n], 'nq:r') == 0 then
        found[#found + 1] = {flat[n], tonumber(flat[n + 1]), set}
        if most and #found >= most then break end
      end
    end
  end
  table.sort(found, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1]) end)
  return found
end

local function sweep_jobs(queue, before, keep, limit, gone)
  local base = base_of(queue)
  local function forget(found, count)
    for n = 1, math.min(count, limit, #found) do
      forget_memos(delete_job(base, found[n][1], found[n][3]))
      gone.jobs = gone.jobs + 1
    end
  end
  if before ~= '' then forget(finished_jobs(base, '(' .. before, limit), limit) end
  if keep ~= '' then
    local found = finished_jobs(base, '+inf')
    forget(found, #found - tonumber(keep))
  end
end

-- References that lead nowhere any more. Each sweep looks at the next stretch, and in the end begins again.
local function trim_references(list, limit)
  local from, gone = call('HGET', NS .. 'swept', list), {}
  local refs = call('XRANGE', list, from and '(' .. from or '-', '+', 'COUNT', limit)
  for _, ref in ipairs(refs) do
    if #call('XRANGE', ref[2][2], ref[2][4], ref[2][4]) == 0 then gone[#gone + 1] = ref[1] end
  end
  if #refs == limit then call('HSET', NS .. 'swept', list, refs[#refs][1]) else call('HDEL', NS .. 'swept', list) end
  if #gone > 0 then call('XDEL', list, unpack(gone)) end
end

function VERBS.sweep()
  local runs_before, keep_runs, jobs_before, keep_jobs, keep_deliveries = arg(1), arg(2), arg(3), arg(4), arg(5)
  local events_before, keep_events, limit = arg(6), arg(7), tonumber(arg(8))
  local gone = {runs = 0, jobs = 0, events = 0, states = 0}
  sweep_runs(runs_before, keep_runs, limit, gone)
  for _, queue in ipairs(call('SMEMBERS', NS .. 'queues')) do
    sweep_jobs(queue, jobs_before, queue == 'penstock-events' and keep_deliveries or keep_jobs, limit, gone)
    gone.events = gone.events + trim(NS .. 'queue:' .. queue, keep_events, events_before)
  end
  gone.events = gone.events + trim(NS .. 'global', keep_events, events_before)
  for _, key in ipairs(call('ZRANGEBYSCORE', NS .. 'states:due', '-inf', now, 'LIMIT', 0, limit)) do
    forget_state(key)
    gone.states = gone.states + 1
  end
  call('ZREMRANGEBYSCORE', NS .. 'once', '-inf', now - tonumber(arg(9)))
  call('ZREMRANGEBYSCORE', NS .. 'units', '-inf', now - tonumber(arg(10)))
  trim_references(NS .. 'feed', limit)
  for _, kind in ipairs(call('SMEMBERS', NS .. 'kinds')) do trim_references(NS .. 'told:' .. kind, limit) end
  return {gone.runs, gone.jobs, gone.events, gone.states}
end

local reply = VERBS[ARGV[6]]()
return {reply, publish(take_topics())}
