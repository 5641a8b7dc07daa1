-- The short way of what nearly every call is: attempts that completed plainly, and the next jobs of queues where nothing is
-- special (plain_claims.lua). All functions of a script are made anew for each call of it; those of the long way are many,
-- and none of them is made when this is enough. Everything is read and judged before the first write: who gives nothing
-- back has written nothing, and the long way begins from the start.
-- Units begin with Y (unit, queue, job, attempt, token, value) or, of a run, with Z (the same, and what plain_steps.lua says).
local SIZES = {Y = 7, Z = 13}
local ending = {} -- queues in which jobs end

-- Where the units begin, if each is a claim, its plain end, events and jobs; which streams and jobs these are, and which
-- kinds of events. The last two are of steps alone.
local function read_plain(at)
  local places, count, streams, last, jobs, kinds = {}, 0, {}, nil, nil, nil
  while at <= #ARGV do
    local letter = ARGV[at]
    local size = SIZES[letter]
    if not size then return end
    if letter == 'Z' and not jobs then jobs, kinds = {}, {} end
    count = count + 1
    places[count] = at
    at = at + size
    while ARGV[at] == 'E' or jobs and ARGV[at] == 'H' do
      if ARGV[at + 1] ~= last then
        last = ARGV[at + 1]
        streams[#streams + 1] = last
      end
      if ARGV[at] == 'H' then
        kinds[ARGV[at + 3]] = true
        at = at + 1
      end
      at = at + 3
    end
    while jobs and ARGV[at] == 'J' do
      jobs[#jobs + 1] = at
      at = at + 10
    end
  end
  return places, streams, jobs, kinds
end

-- The keys of the jobs and of their locks, unless a queue, a lock or children are in the way.
local function keys_of(places)
  local keys, locks, kin, seen = {}, {}, {}, {}
  for n = 1, #places do
    local at = places[n]
    local queue, id = queue_at(ARGV[at + 2]), ARGV[at + 3]
    local key = queue.base .. id
    if not queue.usual or seen[key] or not same_minute(queue) then return end
    if not queue.ends then
      queue.ends, queue.scores, ending[#ending + 1] = {}, {}, queue
    end
    queue.ends[#queue.ends + 1] = id
    seen[key], keys[n], locks[n] = true, key, key .. ':lock'
    kin[2 * n - 1], kin[2 * n] = key .. ':dependencies', key .. ':unsuccessful'
  end
  local tokens = call('MGET', unpack(locks))
  for n = 1, #places do
    if tokens[n] ~= ARGV[places[n] + 5] then return end
  end
  if call('EXISTS', unpack(kin)) == 0 then return keys, locks end
end

-- The number of each attempt and the score of each end, unless a fence, a parent or deduplication is in the way.
local function numbers_of(places, keys)
  local made, scores = {}, {}
  for n = 1, #places do
    local at = places[n]
    local job = call('HMGET', keys[n], 'nq:t', 'ats', 'nq:u', 'nq:n', 'nq:w', 'parentKey', 'deid', 'atm')
    if job[1] ~= ARGV[at + 5] or job[2] ~= ARGV[at + 4] or job[3] == ARGV[at + 1] or not job[4] or job[5] or job[6]
      or job[7] then return end
    made[n], scores[n] = job[8] and job[8] + 1 or '1', now + (job[4] % 1024) / 1024
  end
  return made, scores
end

-- Whether all that end are active, as BullMQ asks. The oldest are last in that list: usually they are just these.
local function are_active(queue)
  local ids, last = queue.ends, {}
  local found = call('LRANGE', queue.active, -#ids, '-1')
  for n = 1, #found do last[found[n]] = true end
  queue.last = true
  for n = 1, #ids do
    if not last[ids[n]] then
      queue.last = false
      if not call('LPOS', queue.active, ids[n], 'RANK', '-1') then return false end
    end
  end
  return true
end

local function leave_active(queue)
  local ids = queue.ends
  if queue.last then
    call('LTRIM', queue.active, '0', -1 - #ids)
  else
    for n = 1, #ids do call('LREM', queue.active, '-1', ids[n]) end
  end
  call('ZREM', queue.leases, unpack(ids))
  queue.ended = queue.ended + #ids
end

-- Writes each end with its events and jobs; what is said of them goes into the reply.
local function write_plain(places, keys, made, scores, reply, runs, write_run, add_plain)
  local said = #reply
  for n = 1, #places do
    local at = places[n]
    local queue, id, value = queue_at(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 6]
    local sorted = queue.scores
    local last = #sorted
    sorted[last + 1], sorted[last + 2] = scores[n], id
    if runs and runs[n] then write_run(at, runs[n]) end
    call('HSET', keys[n], 'returnvalue', value, 'finishedOn', stamp, 'atm', made[n], 'nq:u', ARGV[at + 1], 'nq:t', '')
    tell_completed(queue, id, value)
    if last + 2 == 2 * #queue.ends and is_drained(queue) then call('XADD', queue.events, '*', 'event', 'drained') end
    local count, added = said + 2, 0
    reply[said + 1], reply[count], said = 1, 0, count
    at = at + SIZES[ARGV[at]]
    while ARGV[at] == 'E' or ARGV[at] == 'H' do
      local kind = ARGV[at] == 'H' and ARGV[at + 3]
      reply[said + 1], reply[said + 2] = append(ARGV[at + 1], ARGV[at + 2], kind)
      at, said = at + (kind and 4 or 3), said + 2
    end
    reply[count], reply[said + 1] = said - count, 0
    said = said + 1
    while ARGV[at] == 'J' do
      add_plain(at)
      at, added = at + 10, added + 1
      reply[said + added] = 1
    end
    reply[said], said = added, said + added
  end
end

-- Commits the units from there on, if all are plain; says whether they were.
local function commit_plain(first, reply)
  local places, streams, jobs, kinds = read_plain(first)
  if not places then return false end
  local keys, locks = keys_of(places)
  if not keys then return false end
  local made, scores = numbers_of(places, keys)
  if not made then return false end
  local runs, runs_of, are_new, write_run, add_plain
  if jobs then
    runs_of, are_new, write_run, add_plain = go_steps()
    runs = runs_of(places)
    if not runs or not are_new(jobs, kinds) then return false end
  end
  for _, queue in ipairs(ending) do
    if not are_active(queue) then return false end
  end
  know_heads(streams)
  for _, queue in ipairs(ending) do leave_active(queue) end
  call('DEL', unpack(locks))
  write_plain(places, keys, made, scores, reply, runs, write_run, add_plain)
  for _, queue in ipairs(ending) do call('ZADD', queue.completed, unpack(queue.scores)) end
  told = {} -- nobody waits for them
  if jobs then settle() end -- they may be handed out at once
  return true
end
