-- Reads events: of one stream, and of all streams in commit order.

-- Return the events that a stream of references points to, or their originals if it has them. Skips trimmed events.
local function read_references(list, from, limit)
  local items = {}
  while #items < limit do
    local refs = call('XRANGE', list, from, '+', 'COUNT', limit)
    for _, ref in ipairs(refs) do
      local stream, id = ref[2][2], ref[2][4]
      local found = call('XRANGE', stream, id, id)[1]
      if found and #items < limit then items[#items + 1] = {ref[1], stream, id, ref[2][6] or found[2][2]} end
      from = '(' .. ref[1]
    end
    if #refs < limit then break end
  end
  return items
end

function READS.feed() return read_references(NS .. 'feed', arg(1) == '' and '-' or '(' .. arg(1), tonumber(arg(2))) end

function READS.newest_event()
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

-- `since` names a stream: only events after its first one.
function READS.events_by_kind()
  local kind, since, after, limit = arg(1), arg(2), arg(3), tonumber(arg(4))
  if since ~= '' then
    local head = call('HGET', NS .. 'stream_heads', since)
    local first = head and string.match(head, '^%d+ %d+ (.+)$')
    if first and (after == '' or is_earlier(after, first)) then after = first end
  end
  return read_references(NS .. 'kinds:' .. kind, after == '' and '-' or '(' .. after, limit)
end

local function seq_of(entry) return tonumber(string.match(entry[1], '-(%d+)$')) end

-- The sequence decides the position of an event. The time in a cursor only helps to find it and may differ.
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

-- Return the events strictly between two cursors.
function READS.read()
  local stream, after, before, limit, backward = arg(1), arg(2), arg(3), tonumber(arg(4)), arg(5) == '1'
  local head = call('HGET', NS .. 'stream_heads', stream)
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
