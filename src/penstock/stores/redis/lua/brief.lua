-- The brief way of what nearly every call is: attempts that completed plainly, and the next jobs of queues where nothing
-- is special. All functions of a script are made anew for each call of it; those of the long way are many, and not made at all
-- when this is enough. Everything is read and judged before the first write: whoever gives nothing back has written
-- nothing, and the long way begins from the start.

-- The places of the units, if each is a claim, its plain end and events.
local function read_plain(at)
  local places, streams = {}, {}
  while at <= #ARGV do
    if ARGV[at + 2] ~= '0' or ARGV[at + 3] ~= 'C' or ARGV[at + 9] ~= 'G' then return end
    places[#places + 1] = at
    at = at + 11
    while ARGV[at] == 'E' do
      local stream = ARGV[at + 1]
      if kept_heads[stream] == nil then
        kept_heads[stream] = false
        streams[#streams + 1] = stream
      end
      at = at + 3
    end
    if ARGV[at] and ARGV[at] ~= 'U' then return end
  end
  return places, streams
end

-- Whether all that end are active, as BullMQ's finishing asks. The oldest are at the end of the list: usually just
-- these, and can be cut off together.
local function are_active(queue)
  local ids, last = queue.ends, {}
  for _, id in ipairs(call('LRANGE', queue.active, -#ids, -1)) do last[id] = true end
  queue.last = true
  for _, id in ipairs(ids) do
    if not last[id] then
      queue.last = false
      if not call('LPOS', queue.active, id, 'RANK', -1) then return false end
    end
  end
  return true
end

-- The keys of the jobs that end, unless something is to be said against one of them.
local function keys_of(places)
  local keys, locks, kin, seen = {}, {}, {}, {}
  for n, at in ipairs(places) do
    local queue, id = queue_at(BULL .. ARGV[at + 4] .. ':'), ARGV[at + 5]
    local key = queue.base .. id
    if not queue.usual or seen[key] or not same_minute(queue) then return end
    if not queue.ends then
      queue.ends = {}
      ending[#ending + 1] = queue
    end
    seen[key], keys[n], locks[n] = true, key, key .. ':lock'
    queue.ends[#queue.ends + 1] = id
    kin[2 * n - 1], kin[2 * n] = key .. ':dependencies', key .. ':unsuccessful'
  end
  if call('EXISTS', unpack(kin)) > 0 then return end
  for n, token in ipairs(call('MGET', unpack(locks))) do
    if token ~= ARGV[places[n] + 7] then return end
  end
  return keys, locks
end

-- What each attempt and each arrival is numbered, unless a fence, a parent, children or deduplication are in the way.
local function numbers_of(places, keys)
  local made, arrived = {}, {}
  for n, at in ipairs(places) do
    local job = call('HMGET', keys[n], 'nq:t', 'ats', 'nq:u', 'nq:n', 'nq:w', 'parentKey', 'deid', 'atm')
    if job[1] ~= ARGV[at + 7] or job[2] ~= ARGV[at + 6] or job[3] == ARGV[at + 1] or not job[4] or job[5] or job[6]
      or job[7] then return end
    made[n], arrived[n] = (job[8] or 0) + 1, now + (job[4] % 1024) / 1024
  end
  return made, arrived
end

-- As complete_usual for all of them.
local function end_plain(queue)
  local ids = queue.ends
  if queue.last then
    call('LTRIM', queue.active, 0, -1 - #ids)
  else
    for _, id in ipairs(ids) do call('LREM', queue.active, '-1', id) end
  end
  call('ZREM', queue.leases, unpack(ids))
  call('ZADD', queue.completed, unpack(queue.scores))
  queue.ended = queue.ended + #ids
end

local function write_plain(places, keys, made, arrived, reply)
  for n, at in ipairs(places) do
    local queue, id, value = queue_at(BULL .. ARGV[at + 4] .. ':'), ARGV[at + 5], ARGV[at + 10]
    local scores = queue.scores or {}
    queue.scores = scores
    scores[#scores + 1], scores[#scores + 2] = arrived[n], id
    call('HSET', keys[n], 'returnvalue', value, 'finishedOn', stamp, 'atm', made[n], 'nq:u', ARGV[at + 1], 'nq:t', '')
    tell_completed(queue, id, value)
    local count = #reply + 2
    reply[count - 1], reply[count] = 1, 0
    at = at + 11
    while ARGV[at] == 'E' do
      reply[#reply + 1], reply[#reply + 2] = append(ARGV[at + 1], ARGV[at + 2])
      reply[count] = reply[count] + 2
      at = at + 3
    end
    reply[#reply + 1] = 0
  end
end

-- Commits the units that begin there, if all are plain; says whether they were.
local function commit_plain(first, reply)
  local places, streams = read_plain(first)
  local keys, locks = places and keys_of(places)
  E
echo
