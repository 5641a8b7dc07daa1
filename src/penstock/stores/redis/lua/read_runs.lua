-- Reads runs and their waits.
local function run_row(id)
  local row = read_fields(NS .. 'run:' .. id, 'version', 'flow', 'status', 'closed', 'created', 'updated', 'record',
    'kind', 'parent', 'root', 'depth', 'call')
  if not row then -- another program wrote its key
    return {id, '0', '', 'running', '0', '0', '0', '', false, false, false, false, false}
  end
  if not row[1] then return false end
  return {id, unpack(row, 1, 12)}
end

function READS.run() return run_row(arg(1)) end

function READS.has_open_children() return call('EXISTS', NS .. 'open_children:' .. arg(1)) end

-- The first key is the list that is read.
local function has_other_keys(id, keys)
  for n = 2, #keys do
    if not call('ZSCORE', NS .. 'runs:key:' .. keys[n], id) then return false end
  end
  return true
end

local function is_newer_row(a, b)
  local a_created, b_created = tonumber(a[6]), tonumber(b[6])
  return a_created > b_created or (a_created == b_created and a[1] > b[1])
end

local function newest_runs(list, flow, statuses, keys)
  local since, until_ms, before, limit = arg(3), arg(4), arg(5), tonumber(arg(6))
  local low, high, parse_cursor = since == '' and '-inf' or since, until_ms == '' and '+inf' or '(' .. until_ms, nil
  if before ~= '' then
    parse_cursor = call('ZSCORE', NS .. 'runs', before)
    if not parse_cursor then return {} end
    if until_ms == '' or tonumber(parse_cursor) < tonumber(until_ms) then high = parse_cursor end
  end
  local rows, skip = {}, 0
  while #rows < limit do
    local ids = call('ZREVRANGEBYSCORE', NS .. list, high, low, 'WITHSCORES', 'LIMIT', skip, 200)
    for n = 1, #ids, 2 do
      local row = not (ids[n + 1] == parse_cursor and ids[n] >= before) and run_row(ids[n])
      if row and (not statuses or statuses[row[4]]) and (flow == '' or row[3] == flow) and has_other_keys(row[1], keys) then
        rows[#rows + 1] = row
        if #rows == limit then break end
      end
    end
    if #ids < 400 then break end
    skip = skip + 200
  end
  return rows
end

-- Newest first. The runs of the first key, else of the flow, else of the statuses, are filtered by the rest.
function READS.runs()
  local flow, statuses, keys = arg(1), nil, {}
  for key in string.gmatch(arg(7) or '', '%S+') do keys[#keys + 1] = key end
  for status in string.gmatch(arg(2), '[^\n]+') do
    statuses = statuses or {}
    statuses[status] = true
  end
  if keys[1] then return newest_runs('runs:key:' .. keys[1], flow, statuses, keys) end
  if flow ~= '' then return newest_runs('runs:flow:' .. flow, flow, statuses, keys) end
  if not statuses then return newest_runs('runs', flow, statuses, keys) end
  local rows = {}
  for status in pairs(statuses) do
    for _, row in ipairs(newest_runs('runs:status:' .. status, flow, statuses, keys)) do rows[#rows + 1] = row end
  end
  table.sort(rows, is_newer_row)
  for n = #rows, tonumber(arg(6)) + 1, -1 do rows[n] = nil end
  return rows
end

-- The same, with the body of each run's first event.
function READS.runs_with_first_event()
  local rows = READS.runs()
  for _, row in ipairs(rows) do
    local first = try('XRANGE', NS .. (row[9] or 'flow') .. ':' .. row[1], '-', '+', 'COUNT', 1)[1]
    row[14] = first and string.match(first[1], '-1$') and first[2][1] == 'body' and first[2][2] or false
  end
  return rows
end

local LIVE = {waiting = true, delayed = true, active = true, suspended = true, held = true}
-- An entity may be open with nothing to do: it waits for its next event.
local function is_stuck(id)
  if (read_fields(NS .. 'run:' .. id, 'kind') or {})[1] == 'entity' then return false end
  for _, job in ipairs(call('ZRANGE', NS .. 'run:' .. id .. ':jobs', 0, -1)) do
    local queue = existing_queue(job)
    if queue and LIVE[job_state(base_key(queue), job)] then return false end
  end
  for _, wait in ipairs(call('ZRANGE', NS .. 'run:' .. id .. ':waits', 0, -1)) do
    if (read_fields(NS .. 'wait:' .. wait, 'state') or {})[1] == 'pending' then return false end
  end
  return true
end

function READS.stuck_runs()
  local found, limit, at = {}, tonumber(arg(1)), 0
  while #found < limit do
    local ids = call('ZRANGE', NS .. 'runs:open', at, at + 199)
    if #ids == 0 then break end
    for _, id in ipairs(ids) do
      if #found < limit and is_stuck(id) then found[#found + 1] = id end
    end
    at = at + 200
  end
  return found
end

local function wait_row(id)
  local flat = read_record(NS .. 'wait:' .. id)
  if #flat == 0 and call('EXISTS', NS .. 'wait:' .. id) == 0 then return false end
  return {id, flat}
end

function READS.wait() return wait_row(arg(1)) end

function READS.waits()
  local run, kind, after, limit = arg(1), arg(2), arg(3), tonumber(arg(4))
  local rows = {}
  local ids = call('ZRANGEBYLEX', NS .. 'run:' .. run .. ':waits', after ~= '' and '(' .. after or '-', '+')
  for _, id in ipairs(ids) do
    local wait = read_fields(NS .. 'wait:' .. id, 'state', 'kind') or {'pending', ''}
    if (wait[1] or 'pending') == 'pending' and (kind == '' or wait[2] == kind) then rows[#rows + 1] = wait_row(id) end
    if #rows == limit then break end
  end
  return rows
end

-- Return the ids of the waits of a list that are before a wait, newest first.
local function newest_waits(list, since, until_ms, before, limit)
  local high, last = until_ms == '' and '+inf' or '(' .. until_ms, nil
  if before ~= '' then
    last = tonumber((read_fields(NS .. 'wait:' .. before, 'created') or {})[1])
    if not last then return {} end
    if until_ms == '' or last < tonumber(until_ms) then high = string.format('%.0f', last) end
  end
  local found, skip = {}, 0
  while #found < limit do
    local page = call('ZREVRANGEBYSCORE', list, high, since == '' and '-inf' or since, 'WITHSCORES', 'LIMIT', skip, 200)
    for n = 1, #page, 2 do
      if #found < limit and not (tonumber(page[n + 1]) == last and page[n] >= before) then
        found[#found + 1] = {tonumber(page[n + 1]), page[n]}
      end
    end
    if #page < 400 then break end
    skip = skip + 200
  end
  return found
end

local function is_newer(a, b) return a[1] > b[1] or (a[1] == b[1] and a[2] > b[2]) end

-- Return the waits of a run in one state, newest first.
local function run_waits(run, kind, state, since, until_ms, before)
  local last = before ~= '' and tonumber((read_fields(NS .. 'wait:' .. before, 'created') or {})[1])
  if before ~= '' and not last then return {} end
  local found = {}
  for _, id in ipairs(call('ZRANGE', NS .. 'run:' .. run .. ':waits', 0, -1)) do
    local wait = read_fields(NS .. 'wait:' .. id, 'state', 'kind', 'created') or {}
    local at = tonumber(wait[3]) or 0
    if (wait[1] or 'pending') == state and (kind == '' or wait[2] == kind) and (since == '' or at >= tonumber(since))
      and (until_ms == '' or at < tonumber(until_ms)) and (not last or is_newer({last, before}, {at, id})) then
      found[#found + 1] = {at, id}
    end
  end
  return found
end

function READS.waits_by_time()
  local run, has_run, kind, state = arg(1), arg(2) == '1', arg(3), arg(4)
  local since, until_ms, before, limit = arg(5), arg(6), arg(7), tonumber(arg(8))
  local found, rows = {}, {}
  if has_run then
    found = run_waits(run, kind, state, since, until_ms, before)
  else
    for _, one in ipairs(kind ~= '' and {kind} or {'time', 'event', 'trigger', 'call', 'flow'}) do
      local list = NS .. 'waits:' .. one .. (state ~= 'pending' and ':' .. state or '')
      for _, wait in ipairs(newest_waits(list, since, until_ms, before, limit)) do found[#found + 1] = wait end
    end
  end
  table.sort(found, is_newer)
  for n = 1, math.min(limit, #found) do rows[#rows + 1] = wait_row(found[n][2]) or nil end
  return rows
end

local function parse_cursor(cursor)
  local ms, seq = string.match(cursor, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

local function is_earlier(a, b)
  local ams, aseq = parse_cursor(a)
  local bms, bseq = parse_cursor(b)
  return ams < bms or (ams == bms and aseq < bseq)
end

-- Return the ids of the waits of a topic, in order; with keys, only those of these keys.
local function topic_wait_ids(topic, after, limit, keys)
  local ids, is_readable = {}, not keys or type(try('ZCARD', NS .. 'topic_keys:' .. topic)) == 'number'
  if not keys or not is_readable then -- the caller compares the keys
    return call('ZRANGEBYLEX', NS .. 'topic:' .. topic, after ~= '' and '(' .. after or '-', '+', 'LIMIT', 0, limit)
  end
  for _, key in ipairs(keys) do
    local low = after ~= '' and '(' .. key .. '\n' .. after or '[' .. key .. '\n'
    local page = call('ZRANGEBYLEX', NS .. 'topic_keys:' .. topic, low, '(' .. key .. '\11', 'LIMIT', 0, limit)
    for _, member in ipairs(page) do ids[#ids + 1] = string.sub(member, #key + 2) end
  end
  table.sort(ids)
  while #ids > limit do ids[#ids] = nil end
  return ids
end

function READS.waits_for_topic()
  local topic, before, after, limit, keyed = arg(1), arg(2), arg(3), tonumber(arg(4)), arg(5) == '1'
  local keys, rows = nil, {}
  if keyed then
    keys = {}
    for n = 12, #ARGV do keys[#keys + 1] = ARGV[n] end
  end
  while #rows < limit do
    local ids = topic_wait_ids(topic, after, limit, keys)
    for _, id in ipairs(ids) do
      local pos = (read_fields(NS .. 'wait:' .. id, 'pos') or {})[1]
      if pos and (before == '' or is_earlier(pos, before)) and #rows < limit then rows[#rows + 1] = wait_row(id) end
      after = id
    end
    if #ids < limit then break end
  end
  return rows
end
