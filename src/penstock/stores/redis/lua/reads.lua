-- Reading: ARGV[6] names what, the rest is its own. Nothing here writes.
local function arg(n) return ARGV[6 + n] end
local FAR = '\255\255\255\255'

-- Where to go on in an index whose members all have the score 0.
local function after_prefix(prefix, after)
  if after ~= '' and after >= prefix then return '(' .. after end
  return '[' .. prefix
end

local function job_row(queue, id)
  local base = base_of(queue)
  local flat = call('HGETALL', base .. id)
  if #flat == 0 then return false end
  return {id, queue, (state_of(base, id)), call('ZSCORE', base .. 'nq:leases', id), flat}
end

local function job_rows(queue, ids)
  local rows = {}
  for _, id in ipairs(ids) do
    local row = job_row(queue, id)
    if row then rows[#rows + 1] = row end
  end
  return rows
end

-- A page of a sorted set after a member; one that is no longer in it has no place: what is left comes from the start.
local function page_of(set, after, limit)
  local rank = after ~= '' and call('ZRANK', set, after)
  local start = rank and rank + 1 or 0
  return call('ZRANGE', set, start, start + limit - 1)
end

local function waiting_ids(base, after, limit)
  local ids, wait = {}, base .. 'wait'
  if after ~= '' and call('ZSCORE', base .. 'prioritized', after) then
    return page_of(base .. 'prioritized', after, limit)
  end
  local at = after ~= '' and call('LPOS', wait, after, 'RANK', -1)
  local high = at and at - 1 or call('LLEN', wait) - 1
  if high >= 0 then
    local list = call('LRANGE', wait, math.max(high - limit + 1, 0), high)
    for n = #list, 1, -1 do ids[#ids + 1] = list[n] end
  end
  if #ids < limit then
    for _, id in ipairs(call('ZRANGE', base .. 'prioritized', 0, limit - #ids - 1)) do ids[#ids + 1] = id end
  end
  return ids
end

local function active_ids(base, after, limit)
  local ids, active = {}, base .. 'active'
  local at = after ~= '' and call('LPOS', active, after, 'RANK', -1)
  local high = at and at - 1 or call('LLEN', active) - 1
  if high < 0 then return ids end
  local list = call('LRANGE', active, math.max(high - limit + 1, 0), high)
  for n = #list, 1, -1 do ids[#ids + 1] = list[n] end
  return ids
end

local READS = {}

function READS.job()
  local queue = find_queue(arg(1))
  return queue and job_row(queue, arg(1))
end

-- What a parent knows of its children: key, what became of it, and its value or why it failed.
function READS.children()
  local queue, rows = find_queue(arg(1)), {}
  if not queue then return rows end
  local key = base_of(queue) .. arg(1)
  for _, child in ipairs(call('SMEMBERS', key .. ':dependencies')) do rows[#rows + 1] = {child, 'unprocessed'} end
  for _, child in ipairs(call('ZRANGE', key .. ':unsuccessful', 0, -1)) do rows[#rows + 1] = {child, 'failed'} end
  for set, state in pairs({processed = 'processed', failed = 'ignored'}) do
    local flat = call('HGETALL', key .. ':' .. set)
    for n = 1, #flat, 2 do rows[#rows + 1] = {flat[n], state, flat[n + 1]} end
  end
  return rows
end

function READS.jobs()
  local queue, state, after, limit = arg(1), arg(2), arg(3), tonumber(arg(4))
  local base, ids = base_of(queue), nil
  if state == 'waiting' then
    ids = waiting_ids(base, after, limit)
  elseif state == 'active' then
    ids = active_ids(base, after, limit)
  else
    local own = {suspended = true, held = true, cancelled = true}
    ids = page_of(base .. (own[state] and 'nq:' or '') .. state, after, limit)
  end
  return job_rows(queue, ids)
end

function READS.queues()
  local rows = {}
  for _, name in ipairs(call('SMEMBERS', NS .. 'queues')) do
    local base = base_of(name)
    local function size(set) return call('ZCARD', base .. set) end
    rows[#rows + 1] = {name, call('HEXISTS', base .. 'meta', 'paused'),
      call('LLEN', base .. 'wait') + size('prioritized'), size('delayed'), call('LLEN', base .. 'active'),
      size('nq:suspended'), size('completed'), size('failed'), size('nq:cancelled'), size('waiting-children'),
      size('nq:held')}
  end
  return rows
end

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
    if call('HGET', NS .. 'wait:' .. wait, 'state') == 'open' then return false end
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
      if wait[1] == 'open' and (kind == '' or wait[2] == kind) then rows[#rows + 1] = wait_row(id) end
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

-- Events that references of a stream lead to, as many as asked for; those that were trimmed since are passed over.
local function follow(list, from, limit)
  local items = {}
  while #items < limit do
    local refs = call('XRANGE', list, from, '+', 'COUNT', limit)
    for _, ref in ipairs(refs) do
      local stream, id = ref[2][2], ref[2][4]
      local found = call('XRANGE', stream, id, id)[1]
      if found and #items < limit then items[#items + 1] = {ref[1], stream, id, found[2][2]} end
      from = '(' .. ref[1]
    end
    if #refs < limit then break end
  end
  return items
end

function READS.feed() return follow(NS .. 'feed', arg(1) == '' and '-' or '(' .. arg(1), tonumber(arg(2))) end

function READS.newest()
  local from = '+'
  while true do
    local refs = call('XREVRANGE', NS .. 'feed', from, '-', 'COUNT', 50)
    if #refs == 0 then return {} end
    for _, ref in ipairs(refs) do
      local found = call('XRANGE', ref[2][2], ref[2][4], ref[2][4])[1]
      if found then return {{ref[1], ref[2][2], ref[2][4], found[2][2]}} end
      from = '(' .. ref[1]
    end
  end
end

-- With a stream to begin from, what came after its first event.
function READS.told()
  local kind, since, after, limit = arg(1), arg(2), arg(3), tonumber(arg(4))
  if since ~= '' then
    local head = call('HGET', NS .. 'heads', since)
    local first = head and string.match(head, '^%d+ %d+ (.+)$')
    if first and (after == '' or earlier(after, first)) then after = first end
  end
  return follow(NS .. 'told:' .. kind, after == '' and '-' or '(' .. after, limit)
end

local function seq_of(entry) return tonumber(string.match(entry[1], '-(%d+)$')) end

-- Where an event stands is its sequence; the time in a cursor only helps to find it, and may be another moment's.
local function forward_from(stream, low, cursor)
  if low == 0 then return '-' end
  local next = call('XRANGE', stream, '(' .. cursor, '+', 'COUNT', 1)[1]
  if next and seq_of(next) == low + 1 then return next[1] end
  local from = '-'
  while true do
    local page = call('XRANGE', stream, from, '+', 'COUNT', 500)
    for _, entry in ipairs(page) do
      if seq_of(entry) > low then return entry[1] end
      from = '(' .. entry[1]
    end
    if #page < 500 then return nil end
  end
end

local function backward_from(stream, high, cursor, last)
  if high > last then return '+' end
  local next = call('XREVRANGE', stream, '(' .. cursor, '-', 'COUNT', 1)[1]
  if next and seq_of(next) == high - 1 then return next[1] end
  local from = '+'
  while true do
    local page = call('XREVRANGE', stream, from, '-', 'COUNT', 500)
    for _, entry in ipairs(page) do
      if seq_of(entry) < high then return entry[1] end
      from = '(' .. entry[1]
    end
    if #page < 500 then return nil end
  end
end

-- Events strictly between two places.
function READS.read()
  local stream, after, before, limit, backward = arg(1), arg(2), arg(3), tonumber(arg(4)), arg(5) == '1'
  local head = call('HGET', NS .. 'heads', stream)
  if not head then return {} end
  local last = tonumber(string.match(head, '^%d+ (%d+)'))
  local low = after == '' and 0 or tonumber(string.match(after, '-(%d+)$'))
  local high = before == '' and last + 1 or tonumber(string.match(before, '-(%d+)$'))
  if low >= last or high <= low + 1 then return {} end
  local page
  if backward then
    local from = backward_from(stream, high, before, last)
    page = from and call('XREVRANGE', stream, from, '-', 'COUNT', limit) or {}
  else
    local from = forward_from(stream, low, after)
    page = from and call('XRANGE', stream, from, '+', 'COUNT', limit) or {}
  end
  local rows = {}
  for _, entry in ipairs(page) do
    local seq = seq_of(entry)
    if seq <= low or seq >= high then break end
    rows[#rows + 1] = {entry[1], entry[2][2]}
  end
  return rows
end

function READS.streams()
  local prefix, after, limit = arg(1), arg(2), arg(3)
  return call('ZRANGEBYLEX', NS .. 'streams', after_prefix(prefix, after), '(' .. prefix .. FAR, 'LIMIT', 0, limit)
end

local function state_row(key)
  local row = call('HMGET', NS .. 'state:' .. key, 'v', 'n', 'x')
  if not row[1] or (row[3] and tonumber(row[3]) <= now) then return false end
  return {key, row[1], tonumber(row[2]), row[3] and tonumber(row[3])}
end

function READS.state() return state_row(arg(1)) end

function READS.states()
  local prefix, after, limit, rows = arg(1), arg(2), tonumber(arg(3)), {}
  while #rows < limit do
    local keys = call('ZRANGEBYLEX', NS .. 'states', after_prefix(prefix, after), '(' .. prefix .. FAR, 'LIMIT', 0, 200)
    for _, key in ipairs(keys) do
      local row = #rows < limit and state_row(key)
      if row then rows[#rows + 1] = row end
      after = key
    end
    if #keys < 200 then break end
  end
  return rows
end

local function schedule_row(id)
  local row = call('HMGET', NS .. 'schedule:' .. id, 'spec', 'target', 'next', 'last', 'paused', 'fired')
  if not row[1] then return false end
  return {id, unpack(row, 1, 6)}
end

function READS.schedule() return schedule_row(arg(1)) end

function READS.schedules()
  local rows = {}
  for _, id in ipairs(call('ZRANGE', NS .. 'schedules', 0, -1)) do rows[#rows + 1] = schedule_row(id) end
  return rows
end

function READS.due()
  local next, after, limit, rows = arg(1), arg(2), tonumber(arg(3)), {}
  local ids = call('ZRANGEBYSCORE', NS .. 'schedules:due', next == '' and '-inf' or next, now, 'WITHSCORES')
  for n = 1, #ids, 2 do
    if not (next ~= '' and ids[n + 1] == next and ids[n] <= after) then
      rows[#rows + 1] = schedule_row(ids[n])
      if #rows == limit then break end
    end
  end
  return {now, rows}
end

function READS.next()
  local first = call('ZRANGEBYSCORE', NS .. 'schedules:due', '(' .. arg(1), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return first and tonumber(first)
end

return READS[ARGV[6]]()
