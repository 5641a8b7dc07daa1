-- The long way of handing out jobs: due ones, priority first, within the limits, with their run record and their `started`
-- event. The arguments are those of plain_claims.lua.
local lease, worker, secret, most = tonumber(ARGV[7]), ARGV[8], ARGV[9], tonumber(ARGV[10])
local leased = string.format('%.0f', now + lease)
local claims, emptied = {}, {}
local line = {} -- those who are next in the queue that is served; the last one goes first
local started = {} -- events of what was handed out

-- Puts jobs in line whose time has come; says whether it was all of them.
local function promote_due(base)
  local due = call('ZRANGEBYSCORE', base .. 'delayed', '-inf', (now + 1) * 0x1000 - 1, 'LIMIT', 0, 1000)
  for _, id in ipairs(due) do
    call('ZREM', base .. 'delayed', id)
    call('HSET', base .. id, 'delay', 0)
    push(base, id, false, 'delayed')
  end
  return #due < 1000
end

-- Jobs whose worker was silent for longer than its lease go back to where they were. One that BullMQ's own check has
-- given to another program's worker meanwhile is that one's.
local function expire(base)
  local over = call('ZRANGEBYSCORE', base .. 'nq:leases', '-inf', now, 'LIMIT', 0, 1000)
  for n = #over, 1, -1 do
    local id = over[n]
    local token, lock = call('HGET', base .. id, 'nq:t'), call('GET', base .. id .. ':lock')
    call('ZREM', base .. 'nq:leases', id)
    if token then
      call('HSET', base .. id, 'nq:t', '')
      call('HINCRBY', base .. id, 'nq:c', 1)
      if not lock or lock == token then
        call('DEL', base .. id .. ':lock')
        if call('LREM', base .. 'active', -1, id) > 0 then
          push(base, id, true, 'active')
          call('XADD', base .. 'events', '*', 'event', 'stalled', 'jobId', id)
        end
      end
    end
  end
end

-- Jobs that a worker of another program held and lost: BullMQ's own look, as often as its workers would.
local function rescue(base)
  bull_moveStalledJobsToWait({base .. 'stalled', base .. 'wait', base .. 'active', base .. 'stalled-check',
    base .. 'meta', base .. 'paused', base .. 'marker', base .. 'events', base .. 'repeat'}, {1, base, now, 30000})
end

-- Rate limits: windows that begin with their first claim, for the queue or for each key.
local function budget_of(base, want)
  local windows, changed = {}, {}
  local budget = {}
  local function window(key)
    if not windows[key] then
      local ends, used
      local kept = call('HGET', base .. 'nq:rates', key)
      if kept then ends, used = string.match(kept, '^(%d+) (%d+)$') end
      ends, used = tonumber(ends), tonumber(used)
      -- Clocks of two programs may differ; by more than a span, and the one that began the window has gone back.
      if not ends or ends <= now or ends > now + 2 * want.duration then ends, used = now + want.duration, 0 end
      windows[key] = {ends, used}
    end
    return windows[key]
  end
  local function name(key) return want.per_key and (key or '') or '' end
  function budget.spend(key)
    local one = window(name(key))
    if one[2] >= want.max then return false end
    one[2] = one[2] + 1
    changed[name(key)] = true
    return true
  end
  function budget.ends(key) return window(name(key))[1] end
  function budget.room()
    if want.per_key then return math.huge end
    return want.max - window('')[2]
  end
  function budget.save()
    for key in pairs(changed) do
      call('HSET', base .. 'nq:rates', key, windows[key][1] .. ' ' .. windows[key][2])
    end
  end
  return budget
end

-- BullMQ's own limiter is shared with the workers of other programs; its time is the server's. Who holds a queue fills
-- it up, and then it counts for workers without a limit too. Gives when it is lifted, if it is met.
local function shared_limit(base, want, limiter)
  if not real then
    local till = tonumber(call('GET', base .. 'nq:hold') or 0)
    return till > now and till or nil
  end
  if tonumber(limiter or 0) >= (want.shared or FULL) then
    local left = call('PTTL', base .. 'limiter')
    if left > 0 then return now + left end
    -- Its time is up, but a script sees the keys as they were when it began: the next span begins with a count of its own.
    if left == 0 then call('DEL', base .. 'limiter') end
  end
end

local function count_shared(base, want)
  if want.shared and call('INCR', base .. 'limiter') == 1 then call('PEXPIRE', base .. 'limiter', want.duration) end
end

-- Looks at one more than may be had: so it is known whether any is left.
local function first_in_line(base, room)
  if #line == 0 then line = call('LRANGE', base .. 'wait', -1 - math.max(0, math.min(room, LONGEST)), -1) end
  local id = line[#line]
  if id then return id end
  return call('ZRANGE', base .. 'prioritized', 0, 0)[1], 'prioritized'
end

-- What is known of a job's run. Jobs of a run that is closed or gone are dropped, those of a paused one held.
local function run_of(base, id, set, name)
  if not name then return nil end
  local head = call('HMGET', NS .. 'run:' .. name, 'version', 'closed', 'paused', 'record')
  if not head[1] or head[2] == '1' then
    pull(base, id, set)
    push_cancelled(base, id)
    return false
  end
  if head[3] == '1' then
    pull(base, id, set)
    call('ZADD', base .. 'nq:held', tonumber(call('HGET', base .. id, 'nq:n') or 0), id)
    return false
  end
  return head
end

-- BullMQ's own way from the line to the active ones. Gives the job as it is then, or nothing.
local function activate_unusual(base, id, token)
  settle()
  local reply = bull_moveToActive({base .. 'wait', base .. 'active', base .. 'prioritized', base .. 'events',
    base .. 'stalled', base .. 'limiter', base .. 'delayed', base .. 'paused', base .. 'meta', base .. 'pc',
    base .. 'marker'}, {base, now, cmsgpack.pack({token = token, lockDuration = lease, name = worker})})
  if not reply[2] or reply[2] == 0 then
    if reply[3] and reply[3] > 0 then due_at(now + reply[3]) end
    return nil
  end
  assert(reply[2] == id, 'another job was in line')
  call('HSET', base .. id, 'nq:t', token)
  return fields(reply[1])
end

local function hand_out(name, base, id, set, job, head, want)
  local token, queue = secret .. '-' .. (#claims + 1), queue_at(name)
  if queue.usual and not set and want.promoted then
    activate_usual(queue, id, job, worker, token, ARGV[7])
  else
    want.changed = true
    job = activate_unusual(base, id, token)
    if not job then return false end
  end
  -- That a child has failed it is the engine's to record; it looks at the children of those that wait for some.
  local doomed = job.defa and call('ZCARD', base .. id .. ':unsuccessful') > 0
  if doomed then
    job['nq:o'] = job['nq:o'] or '{"waits":true}'
  elseif job.defa and job['nq:n'] then -- said of a job of ours that stalled: how often it may is the engine's to say
    call('HDEL', base .. id, 'defa')
  elseif job.defa then -- another program has decided that it failed: as its own workers would
    let_go(base, id)
    finish(base, id, 'failed', 'failedReason', job.defa)
    want.moved = true -- its parent may be in line now
    return true
  end
  -- The job of another program is in no index of ours: its queue has to be known for it to be found by its id.
  if not job['nq:n'] then know_queue(name) end
  write_later('ZADD', base .. 'nq:leases', leased, id)
  if job['nq:p'] then call('ZREM', base .. 'nq:urgent', id) end
  count_shared(base, want)
  if job['nq:ss'] then
    started[#started + 1] = {job['nq:ss'], job['nq:sh'] .. '"attempt":' .. job.ats .. ',"worker":"' .. worker .. '"}}'}
  end
  local scope, found = job['nq:s'] or id, {}
  if job.ats ~= '1' or job['nq:s'] then found = call('HGETALL', NS .. 'memos:' .. scope) end
  claims[#claims + 1] = {id, name, job.name, job.data, job['nq:o'] or '{}', scope, tonumber(job.ats), token,
    tonumber(job['nq:f'] or 0), tonumber(job['nq:c'] or 0), job['nq:r'] or false,
    head and tonumber(head[1]) or 0, head and head[4] or false, job.rjk or false, job.rjk and job.opts or false, found}
  return true
end

local function room_for(base, want)
  local left = want.had + want.limit - #claims
  if most then left = math.min(left, most - #claims) end
  if want.active then left = math.min(left, want.active - call('LLEN', base .. 'active')) end
  return left
end

-- One job of the queue: true to go on, false when there is nothing more to be had.
local function take(queue, base, id, set, want, budget)
  local job = fields(call('HGETALL', base .. id))
  if not job.name then -- its hash is gone: nothing is left to be done
    pull(base, id, set)
    return true
  end
  local head = run_of(base, id, set, job['nq:r'])
  if head == false then return true end
  if budget and not budget.spend(job['nq:k']) then
    pull(base, id, set)
    push_delayed(base, id, budget.ends(job['nq:k']))
    due_at(budget.ends(job['nq:k']))
    return true
  end
  return hand_out(queue, base, id, set, job, head, want)
end

-- Takes as many as there is room for; says so if none is left.
local function take_all(queue, base, want, budget)
  local lifted = shared_limit(base, want, want.limiter)
  line = {}
  for _ = 1, 5000 do
    local room = room_for(base, want)
    if lifted or (budget and budget.room() <= 0) then return lifted end
    if room <= 0 and #line > 0 then return end -- there are more
    local id, set = first_in_line(base, room)
    if not id then emptied[#emptied + 1] = queue end
    if not id or room <= 0 or not take(queue, base, id, set, want, budget) then return end
    line[#line] = nil
    if want.moved then line, want.moved = {}, nil end
    if want.shared then lifted = shared_limit(base, want, call('GET', base .. 'limiter')) end
  end
end

-- Brings back what is due, lapsed or stalled; a look at the first of each says whether there is any.
local function look(base, want)
  local delayed, leased = first_of(base .. 'delayed'), first_of(base .. 'nq:leases')
  want.promoted, want.next, want.lapses = true, delayed, leased
  if delayed and delayed < (now + 1) * 0x1000 then
    want.promoted, want.changed = promote_due(base), true
  end
  if leased and leased <= now then
    expire(base)
    want.changed = true
  end
  if not real then return end
  local kept = call('MGET', base .. 'stalled-check', base .. 'limiter')
  want.limiter = kept[2]
  if not kept[1] then rescue(base) end
end

-- When there is more to be had: the next one that is due, and the next lease to run out.
local function tell_due(base, want)
  if want.changed then want.next, want.lapses = first_of(base .. 'delayed'), first_of(base .. 'nq:leases') end
  if want.next then due_at(math.floor(want.next / 0x1000)) end
  due_at(want.lapses)
  if #claims > want.had then due_at(now + lease) end
end

local function serve(name, want)
  local base = base_of(name)
  local queue = queue_at(name)
  if queue.paused then return end
  if call('EXISTS', queue.wait, queue.active, queue.leases, base .. 'delayed', base .. 'prioritized') == 0 then
    emptied[#emptied + 1] = name
    return
  end
  look(base, want)
  want.shared = real and not want.per_key and want.max
  local budget = want.max and not want.shared and budget_of(base, want)
  want.had, want.changed = #claims, want.changed or budget
  due_at(take_all(name, base, want, budget))
  settle()
  if budget then
    budget.save()
    if budget.room() <= 0 then due_at(budget.ends()) end
  end
  tell_due(base, want)
end

local function append_started()
  local streams = {}
  for n, one in ipairs(started) do streams[n] = one[1] end
  know_heads(streams)
  for _, one in ipairs(started) do append(one[1], one[2]) end
end

for i = 11, 10 + 6 * wanted, 6 do
  local version, old = version_of(queue_at(ARGV[i]))
  if old then return nil, 'NQVERSION ' .. ARGV[i] .. ' ' .. version end
  if real then due_at(now + (version and 200 or 1000)) end -- nobody tells us of what others add
end
for i = 11, 10 + 6 * wanted, 6 do
  if not most or #claims < most then
    serve(ARGV[i], {limit = tonumber(ARGV[i + 1]), max = tonumber(ARGV[i + 2]), duration = tonumber(ARGV[i + 3]),
      per_key = ARGV[i + 4] == '1', active = tonumber(ARGV[i + 5])})
  end
end
forget_ended()
append_started()

local reply = ...
for _, one in ipairs(claims) do
  local found = one[16]
  one[16] = #found
  for n = 1, 16 do reply[#reply + 1] = one[n] end
  for _, value in ipairs(found) do reply[#reply + 1] = value end
end
return emptied
