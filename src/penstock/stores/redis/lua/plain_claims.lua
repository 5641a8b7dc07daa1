-- The short way of handing out jobs. ARGV[6]: how many queues are wanted; then lease, worker, token, limit over all, and six
-- values for each queue.
local wanted = tonumber(ARGV[6])
local next_due

local function due_at(moment)
  if moment and (not next_due or moment < next_due) then next_due = moment end
end

-- The first of a sorted set: its score.
local function first_of(key) return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) end

-- The version that another program has named, so that it may add jobs without a word to us; and whether it is BullMQ 5 or
-- older: jobs added to a queue of theirs while it is paused would be lost.
local function version_of(queue)
  local version = queue.version
  local major = version and tonumber(string.match(version, '^bullmq:(%d+)'))
  return version, major and major < 6
end

-- Looks at a queue: nothing if something is due, lapsed, stalled, held or sorted by priority, else how many of it may be
-- had; `line` are those in line and one more, if there is one.
local function look_plainly(queue, room, emptied)
  if call('EXISTS', queue.wait, queue.active, queue.leases, queue.base .. 'delayed', queue.base .. 'prioritized') == 0 then
    emptied[#emptied + 1] = queue.name
    return 0
  end
  local delayed, lapses = first_of(queue.base .. 'delayed'), first_of(queue.leases)
  if delayed and delayed < (now + 1) * 0x1000 or lapses and lapses <= now then return end
  if real then
    local kept = call('MGET', queue.base .. 'stalled-check', queue.base .. 'limiter')
    if not kept[1] or kept[2] then return end
  elseif call('EXISTS', queue.base .. 'nq:hold') == 1 then
    return
  end
  local line = call('LRANGE', queue.wait, -1 - room, -1)
  local count = #line
  if count > room then
    count = room
  else
    if call('EXISTS', queue.base .. 'prioritized') == 1 then return end
    emptied[#emptied + 1] = queue.name
  end
  queue.line, queue.next, queue.lapses = line, delayed, lapses
  return count
end

-- Judges a job; puts what is said of it into the reply, and what is to be written into `given`.
local function judge(queue, id, token, given, out)
  local said = #out
  local job = fields(call('HGETALL', queue.base .. id))
  if not job.name or not job['nq:n'] or job.defa or job['nq:p'] then return false end
  local attempt, run, head = (job.ats or 0) + 1, job['nq:r'] or false, nil
  if run then
    head = call('HMGET', NS .. 'run:' .. run, 'version', 'closed', 'paused', 'record')
    if not head[1] or head[2] == '1' or head[3] == '1' then return false end
  end
  local scope, found = job['nq:s'] or id, nil
  if attempt ~= 1 or job['nq:s'] then found = call('HGETALL', NS .. 'memos:' .. scope) end
  given[#given + 1] = {queue, id, token, attempt, job['nq:ss'], job['nq:sh']}
  out[said + 1], out[said + 2], out[said + 3], out[said + 4] = id, queue.name, job.name, job.data
  out[said + 5], out[said + 6], out[said + 7], out[said + 8] = job['nq:o'] or '{}', scope, attempt, token
  out[said + 9], out[said + 10], out[said + 11] = tonumber(job['nq:f'] or 0), tonumber(job['nq:c'] or 0), run
  out[said + 12], out[said + 13] = head and tonumber(head[1]) or 0, head and head[4] or false
  out[said + 14], out[said + 15], out[said + 16] = job.rjk or false, job.rjk and job.opts or false, found and #found or 0
  if found then
    for n = 1, #found do out[said + 16 + n] = found[n] end
  end
  return true
end

-- Judges all that is wanted; gives whom to serve, or nothing.
local function judge_all(given, out, emptied)
  local served, most = {}, tonumber(ARGV[10])
  for i = 11, 10 + 6 * wanted, 6 do
    local queue = queue_at(BULL .. ARGV[i] .. ':')
    local version, old = version_of(queue)
    local room = tonumber(ARGV[i + 1])
    if most and most - #given < room then room = most - #given end
    if ARGV[i + 2] ~= '' or ARGV[i + 5] ~= '' or old or room > 500 or queue.line then return end
    queue.name = ARGV[i]
    if real then due_at(now + (version and 200 or 1000)) end -- nobody tells us of what others add
    if not queue.paused and (not most or #given < most) then
      local count = look_plainly(queue, room, emptied)
      if not count or (count > 0 and not queue.usual) then return end
      for n = 0, count - 1 do
        if not judge(queue, queue.line[#queue.line - n], ARGV[9] .. '-' .. (#given + 1), given, out) then return end
      end
      queue.count = count
      served[#served + 1] = queue
    end
  end
  return served
end

-- As activate_usual for one of them, but for its place in the lists.
local function give(one, worker, lease)
  local queue, id, token, attempt = one[1], one[2], one[3], one[4]
  local key = queue.base .. id
  call('SET', key .. ':lock', token, 'PX', lease)
  call('XADD', queue.events, '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
  call('HSET', key, 'processedOn', stamp, 'pb', worker, 'ats', attempt, 'nq:t', token)
end

local function move_to_active(queue, leased)
  local count, line, ids, leases = queue.count, queue.line, {}, {}
  for n = 1, count do
    ids[n] = line[#line + 1 - n]
    leases[2 * n - 1], leases[2 * n] = leased, ids[n]
  end
  call('LTRIM', queue.wait, 0, -1 - count)
  call('LPUSH', queue.active, unpack(ids))
  call('ZADD', queue.leases, unpack(leases))
  mark_work(queue)
end

local function start(given, worker)
  local streams = {}
  for _, one in ipairs(given) do
    if one[5] and kept_heads[one[5]] == nil then
      kept_heads[one[5]] = false
      streams[#streams + 1] = one[5]
    end
  end
  know_heads(streams)
  for _, one in ipairs(given) do
    if one[5] then append(one[5], one[6] .. '"attempt":' .. one[4] .. ',"worker":"' .. worker .. '"}}') end
  end
end

-- Hands out what is wanted if nothing about it is special; gives the reply, or nothing.
local function claim_plainly()
  local given, out, emptied = {}, {}, {}
  local served = judge_all(given, out, emptied)
  if not served then
    next_due = nil
    return
  end
  local lease, worker = ARGV[7], ARGV[8]
  for _, queue in ipairs(served) do
    if queue.count > 0 then move_to_active(queue, string.format('%.0f', now + lease)) end
    if queue.next then due_at(math.floor(queue.next / 0x1000)) end
    due_at(queue.lapses)
  end
  if #given > 0 then due_at(now + lease) end
  for _, one in ipairs(given) do give(one, worker, lease) end
  start(given, worker)
  return {rows = out, emptied = emptied}
end
