-- The short way of handing out jobs. ARGV[6]: how many queues are wanted; then lease, worker, token, limit over all, and six
-- values for each queue.
local wanted = tonumber(ARGV[6])
local next_due

local function due_at(moment)
  if moment and (not next_due or moment < next_due) then next_due = moment end
end

-- The first of a sorted set: its score.
local function first_of(key) return tonumber(call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]) end

-- The version that another program has named, so that it may add jobs without a word to us; and whether it is BullMQ 5 or
-- older: jobs added to a queue of theirs while it is paused would be lost.
local function version_of(queue)
  local version = queue.version
  local major = version and tonumber(string.match(version, '^bullmq:(%d+)'))
  return version, major and major < 6
end

-- Whether something of the queue is due, lapsed, stalled or held.
local function is_special(queue)
  local base = queue.base
  queue.next, queue.lapses = first_of(base .. 'delayed'), first_of(queue.leases)
  if queue.next and queue.next < (now + 1) * 0x1000 or queue.lapses and queue.lapses <= now then return true end
  if not real then return call('EXISTS', base .. 'nq:hold') == 1 end
  local kept = call('MGET', base .. 'stalled-check', base .. 'limiter')
  return not kept[1] or kept[2]
end

-- How many of those in line may be had, or nothing if there is something special about the queue. One more than that is
-- looked at: so it is known whether any is left.
local function look_plainly(queue, room, emptied)
  local line = call('LRANGE', queue.wait, -1 - room, '-1')
  local count = #line
  if count <= room then
    local base, nothing = queue.base, false
    if count == 0 then
      nothing = call('EXISTS', queue.active, queue.leases, base .. 'delayed', base .. 'prioritized') == 0
    end
    if not nothing and call('EXISTS', base .. 'prioritized') == 1 then return end
    emptied[#emptied + 1] = queue.name
    if nothing then return 0 end
  end
  if is_special(queue) then return end
  queue.line = line
  return count < room and count or room
end

local job = {} -- one table for all of them: each would grow anew
-- Judges a job. What is said of it goes into the reply, what is to be written into `given`; says false if it is special.
local function judge(queue, id, token, given, reply)
  for name in pairs(job) do job[name] = nil end
  local flat = call('HGETALL', queue.base .. id)
  for n = 1, #flat, 2 do job[flat[n]] = flat[n + 1] end
  if not job.name or not job['nq:n'] or job.defa or job['nq:p'] then return false end
  local run, head = job['nq:r'] or false, nil
  if run then
    head = call('HMGET', NS .. 'run:' .. run, 'version', 'closed', 'paused', 'record')
    if not head[1] or head[2] == '1' or head[3] == '1' then return false end
  end
  local attempt, scope, found, more = '1', job['nq:s'] or id, nil, 0
  if job.ats then attempt = tostring(job.ats + 1) end
  if attempt ~= '1' or job['nq:s'] then
    found = call('HGETALL', NS .. 'memos:' .. scope)
    more = #found
  end
  given[#given + 1] = {queue, id, token, attempt, job['nq:ss'], job['nq:sh']}
  local said, rjk = #reply, job.rjk or false
  reply[said + 1], reply[said + 2], reply[said + 3], reply[said + 4] = id, queue.name, job.name, job.data
  reply[said + 5], reply[said + 6], reply[said + 7], reply[said + 8] = job['nq:o'] or '{}', scope, tonumber(attempt), token
  reply[said + 9], reply[said + 10], reply[said + 11] = tonumber(job['nq:f'] or 0), tonumber(job['nq:c'] or 0), run
  reply[said + 12], reply[said + 13] = head and tonumber(head[1]) or 0, head and head[4] or false
  reply[said + 14], reply[said + 15], reply[said + 16] = rjk, rjk and job.opts, more
  for n = 1, more do reply[said + 16 + n] = found[n] end
  return true
end

-- Judges all that is wanted; gives whom to serve, or nothing.
local function judge_all(given, reply, emptied)
  local served, most = {}, tonumber(ARGV[10])
  for i = 11, 10 + 6 * wanted, 6 do
    local queue = queue_at(ARGV[i])
    local version, old = version_of(queue)
    local room = tonumber(ARGV[i + 1])
    if most and most - #given < room then room = most - #given end
    if ARGV[i + 2] ~= '' or ARGV[i + 5] ~= '' or old or room > 500 or queue.line then return end
    if real then due_at(now + (version and 200 or 1000)) end -- nobody tells us of what others add
    if not queue.paused and (not most or #given < most) then
      local count = look_plainly(queue, room, emptied)
      if not count or (count > 0 and not queue.usual) then return end
      for n = 0, count - 1 do
        if not judge(queue, queue.line[#queue.line - n], ARGV[9] .. '-' .. (#given + 1), given, reply) then return end
      end
      queue.count = count
      served[#served + 1] = queue
    end
  end
  return served
end

-- As activate_usual for all of them, but for what is theirs alone.
local function move_to_active(queue, leased)
  local count, line, ids, leases = queue.count, queue.line, {}, {}
  for n = 1, count do
    ids[n] = line[#line + 1 - n]
    leases[2 * n - 1], leases[2 * n] = leased, ids[n]
  end
  if count == 1 then
    call('RPOPLPUSH', queue.wait, queue.active)
  else
    call('LTRIM', queue.wait, '0', -1 - count)
    call('LPUSH', queue.active, unpack(ids))
  end
  call('ZADD', queue.leases, unpack(leases))
  mark_work(queue)
end

-- The lock, BullMQ's event and the attempt of each; then the events of their starts.
local function begin_all(given, worker, lease)
  local streams, last = {}, nil
  for n = 1, #given do
    local one = given[n]
    local events, id, token, stream = one[1].events, one[2], one[3], one[5]
    local key = one[1].base .. id
    call('SET', key .. ':lock', token, 'PX', lease)
    call('XADD', events, '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
    call('HSET', key, 'processedOn', stamp, 'pb', worker, 'ats', one[4], 'nq:t', token)
    if stream and stream ~= last then
      last = stream
      streams[#streams + 1] = stream
    end
  end
  know_heads(streams)
  local by = ',"worker":"' .. worker .. '"}}'
  for n = 1, #given do
    local one = given[n]
    if one[5] then append(one[5], one[6] .. '"attempt":' .. one[4] .. by) end
  end
end

-- Hands out what is wanted if nothing about it is special. What is said of it goes into the reply; gives the queues of which
-- nothing is left, or nothing.
local function claim_plainly(reply)
  local said, given, emptied = #reply, {}, {}
  local served = judge_all(given, reply, emptied)
  if not served then
    for n = #reply, said + 1, -1 do reply[n] = nil end
    next_due = nil
    return
  end
  local lease = ARGV[7]
  local leased = string.format('%.0f', now + lease)
  for _, queue in ipairs(served) do
    if queue.count > 0 then move_to_active(queue, leased) end
    if queue.next then due_at(math.floor(queue.next / 0x1000)) end
    due_at(queue.lapses)
  end
  if #given > 0 then due_at(now + lease) end
  begin_all(given, ARGV[8], lease)
  return emptied
end
