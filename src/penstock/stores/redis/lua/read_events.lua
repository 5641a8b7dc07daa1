-- Reads events: of one stream, and of all streams in commit order.

-- Another program may have added entries: ours hold `body` and `pos`.
local function is_event(entry) return entry[2][1] == 'body' and entry[2][3] == 'pos' end

-- Return an entry as a row: its id and its body, or false and its fields if it is not an event of ours.
local function event_row(entry)
  if is_event(entry) then return {entry[1], entry[2][2]} end
  return {entry[1], false, entry[2]}
end

-- Return the event that a reference points to: position, stream, id and body. Returns nil if it was trimmed, and fields in
-- place of the body if another program wrote it.
local function resolve_reference(ref)
  local fields = ref[2]
  if fields[1] ~= 'stream' or fields[3] ~= 'id' then return {ref[1], '', ref[1], false, fields} end
  local found = redis.pcall('XRANGE', fields[2], fields[4], fields[4])
  if found.err then return {ref[1], '', ref[1], false, fields} end
  if not found[1] then return nil end
  local id, body, foreign = unpack(event_row(found[1]))
  return {ref[1], fields[2], id, body, foreign}
end

-- Return entries of a stream; none if another program wrote its key as another type.
local function read_entries(command, stream, from, to, limit)
  local found = try(command, stream, from, to, 'COUNT', limit)
  if not found.err then return found end
  read_failure(found)
  return {}
end

-- Return the events that a stream of references points to, or their originals if it has them. Skips trimmed events.
local function read_references(list, from, limit)
  local items = {}
  while #items < limit do
    local refs = read_entries('XRANGE', list, from, '+', limit)
    for _, ref in ipairs(refs) do
      local item = resolve_reference(ref)
      if item and #items < limit then
        if item[4] and ref[2][5] == 'original' then item[4] = ref[2][6] end
        items[#items + 1] = item
      end
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
    local refs = read_entries('XREVRANGE', NS .. 'feed', from, '-', 50)
    if #refs == 0 then return {} end
    for _, ref in ipairs(refs) do
      local item = resolve_reference(ref)
      if item then return {item} end
      from = '(' .. ref[1]
    end
  end
end

-- `since` names a stream: only events after its first one.
function READS.events_by_kind()
  local kind, since, after, limit = arg(1), arg(2), arg(3), tonumber(arg(4))
  if since ~= '' then
    local head = read_fields(NS .. 'stream_heads', since) or {}
    local first = head[1] and string.match(head[1], '^%d+ %d+ (%d+%-%d+)$')
    if first and (after == '' or is_earlier(after, first)) then after = first end
  end
  return read_references(NS .. 'kinds:' .. kind, after == '' and '-' or '(' .. after, limit)
end

local function seq_of(entry) return tonumber(string.match(entry[1], '-(%d+)$')) end

-- Return where a range starts after a cursor. A cursor that names an entry starts there. Otherwise its sequence decides: its
-- time may differ, and its event may be trimmed.
local function range_from(stream, command, cursor, first, last, is_within)
  if cursor == '' then return first end
  if #call('XRANGE', stream, cursor, cursor) > 0 then return '(' .. cursor end
  local from = first
  while true do
    local page = call(command, stream, from, last, 'COUNT', 500)
    for _, entry in ipairs(page) do
      if is_event(entry) and is_within(seq_of(entry)) then return entry[1] end
      from = '(' .. entry[1]
    end
    if #page < 500 then return nil end
  end
end

-- Return the events strictly between two cursors. Entries of other programs have no sequence of ours: they are returned
-- where they stand.
function READS.read()
  local stream, after, before, limit, backward = arg(1), arg(2), arg(3), tonumber(arg(4)), arg(5) == '1'
  local kind = call('TYPE', stream).ok
  if kind ~= 'stream' and kind ~= 'none' then
    if after ~= '' or before ~= '' then return {} end
    return {{'0-0', false, {}, 'another program wrote the key of this stream as a ' .. kind}}
  end
  local low = after ~= '' and tonumber(string.match(after, '-(%d+)$'))
  local high = before ~= '' and tonumber(string.match(before, '-(%d+)$'))
  local from, page
  if backward then
    from = range_from(stream, 'XREVRANGE', before, '+', '-', function(seq) return seq < high end)
    page = from and call('XREVRANGE', stream, from, '-', 'COUNT', limit) or {}
  else
    from = range_from(stream, 'XRANGE', after, '-', '+', function(seq) return seq > low end)
    page = from and call('XRANGE', stream, from, '+', 'COUNT', limit) or {}
  end
  local rows, stop = {}, backward and after or before
  local named = stop ~= '' and call('XRANGE', stream, stop, stop)[1]
  for _, entry in ipairs(page) do
    if named and entry[1] == named[1] then break end
    if stop ~= '' and not named and is_event(entry) then
      local seq = seq_of(entry)
      if backward and seq <= low or not backward and seq >= high then break end
    end
    rows[#rows + 1] = event_row(entry)
  end
  return rows
end

-- The last created first. Streams of one millisecond are in the order of their names.
function READS.newest_streams()
  local prefix, before, limit = arg(1), arg(2), tonumber(arg(3))
  local list, first = NS .. 'streams:by_type:' .. prefix, 0
  if before ~= '' then
    local rank = call('ZREVRANK', list, before)
    if not rank then return {} end
    first = rank + 1
  end
  local rows = {}
  for _, name in ipairs(call('ZREVRANGE', list, first, first + limit - 1)) do
    local ms, seq = string.match(call('HGET', NS .. 'stream_heads', name) or '0 0 0', '^(%d+) (%d+)')
    rows[#rows + 1] = {name, tonumber(seq), tonumber(ms)}
  end
  return rows
end

function READS.streams()
  local prefix, after, limit = arg(1), arg(2), arg(3)
  return call('ZRANGEBYLEX', NS .. 'streams', after_prefix(prefix, after), '(' .. prefix .. FAR, 'LIMIT', 0, limit)
end
