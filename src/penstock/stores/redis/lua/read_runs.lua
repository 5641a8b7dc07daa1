-- Runs, and the gates they wait at.
local function run_row(id)
  local row = call('HMGET', NS .. 'run:' .. id, 'version', 'flow', 'status', 'closed', 'created', 'updated', 'record')
  if not row[1] then return false end
  return {id, unpack(row)}
end

function READS.run() return run_row(arg(1)) end

-- Newest first; with a flow and a status, the flow's are looked through.
function READS.runs()
  local flow, status, since, till, before, limit = arg(1), arg(2), arg(3), arg(4), arg(5), tonumber(arg(6))
  local list = NS .. (flow ~= '' and 'runs:flow:' .. flow or status ~= '' and 'runs:status:' .. status or 'runs')
  local low, high, place = since == '' and '-inf' or since, till == '' and '+inf' or '(' .. till, nil
  if before ~= '' then
    place = call('ZSCORE', NS .. 'runs', before)
    if not place then return {} end
    if till == '' or tonumber(place) < tonumber(till) then high = place end
  end
  local rows, skip = {}, 0
  while #rows < limit do
    local ids = call('ZREVRANGEBYSCORE', list, high, low, 'WITHSCORES', 'LIMIT', skip, 200)
    for n = 1, #ids, 2 do
      local row = not (ids[n + 1] == place and ids[n] >= before) and run_row(ids[n])
      if row and (status == '' or row[4] == status) then
        rows[#rows + 1] = row
        if #rows == limit then break end
      end
    end
    if #ids < 400 then break end
    skip = skip + 200
  end
  return rows
end

-- The same, each with the body of its first event.
function READS.begun()
  local rows = READS.runs()
  for _, row in ipairs(rows) do
    local first = call('XRANGE', NS .. 'flow:' .. row[1], '-', '+', 'COUNT', 1)[1]
    row[9] = first and string.match(first[1], '-1$') and first[2][2] or false
  end
  return rows
end

local LIVE = {waiting = true, delayed = true, active = true, suspended = true, held = true}
local function is_loose(id)
  for _, job in ipairs(call('ZRANGE', NS .. 'run:' .. id .. ':jobs', 0, -1)) do
    local queue = queue_of(job)
    if queue and LIVE[state_of(base_of(queue), job)] then return false end
  end
  for _, wait in ipairs(call('ZRANGE', NS .. 'run:' .. id .. ':waits', 0, -1)) do
    if call('HGET', NS .. 'wait:' .. wait, 'state') == 'pending' then return false end
  end
  return true
end

function READS.loose()
  local found, limit, at = {}, tonumber(arg(1)), 0
  while #found < limit do
    local ids = call('ZRANGE', NS .. 'runs:open', at, at + 199)
    if #ids == 0 then break end
    for _, id in ipairs(ids) do
      if #found < limit and is_loose(id) then found[#found + 1] = id end
    end
    at = at + 200
  end
  return found
end

local function wait_row(id)
  local flat = call('HGETALL', NS .. 'wait:' .. id)
  if #flat == 0 then return false end
  return {id, flat}
end

function READS.wait() return wait_row(arg(1)) end

function READS.waits()
  local run, kind, after, limit = arg(1), arg(2), arg(3), tonumber(arg(4))
  local rows, kinds = {}, {}
  if run ~= '' then
    local ids = call('ZRANGEBYLEX', NS .. 'run:' .. run .. ':waits', after ~= '' and '(' .. after or '-', '+')
    for _, id in ipairs(ids) do
      local wait = call('HMGET', NS .. 'wait:' .. id, 'state', 'kind')
      if wait[1] == 'pending' and (kind == '' or wait[2] == kind) then rows[#rows + 1] = wait_row(id) end
      if #rows == limit then break end
    end
    return rows
  end
  if kind ~= '' then kinds = {kind} else kinds = {'time', 'event', 'trigger', 'flow'} end
  local ids = {}
  for _, one in ipairs(kinds) do
    local page = call('ZRANGEBYLEX', NS .. 'waits:' .. one, after ~= '' and '(' .. after or '-', '+', 'LIMIT', 0, limit)
    for _, id in ipairs(page) do ids[#ids + 1] = id end
  end
  table.sort(ids)
  for n = 1, math.min(limit, #ids) do rows[n] = wait_row(ids[n]) end
  return rows
end

local function place(cursor)
  local ms, seq = string.match(cursor, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

local function earlier(a, b)
  local ams, aseq = place(a)
  local bms, bseq = place(b)
  return ams < bms or (ams == bms and aseq < bseq)
end

-- The gates of a topic in the order of their ids, those opened before a place of the feed; args from 6: the keys.
local function listeners(topic, after, limit, keys)
  local ids = {}
  if not keys then
    return call('ZRANGEBYLEX', NS .. 'topic:' .. topic, after ~= '' and '(' .. after or '-', '+', 'LIMIT', 0, limit)
  end
  for _, key in ipairs(keys) do
    local low = after ~= '' and '(' .. key .. '\n' .. after or '[' .. key .. '\n'
    local page = call('ZRANGEBYLEX', NS .. 'topickeys:' .. topic, low, '(' .. key .. '\11', 'LIMIT', 0, limit)
    for _, member in ipairs(page) do ids[#ids + 1] = string.sub(member, #key + 2) end
  end
  table.sort(ids)
  while #ids > limit do ids[#ids] = nil end
  return ids
end

function READS.listening()
  local topic, before, after, limit, keyed = arg(1), arg(2), arg(3), tonumber(arg(4)), arg(5) == '1'
  local keys, rows = nil, {}
  if keyed then
    keys = {}
    for n = 12, #ARGV do keys[#keys + 1] = ARGV[n] end
  end
  while #rows < limit do
    local ids = listeners(topic, after, limit, keys)
    for _, id in ipairs(ids) do
      local pos = call('HGET', NS .. 'wait:' .. id, 'pos')
      if pos and (before == '' or earlier(pos, before)) and #rows < limit then rows[#rows + 1] = wait_row(id) end
      after = id
    end
    if #ids < limit then break end
  end
  return rows
end
