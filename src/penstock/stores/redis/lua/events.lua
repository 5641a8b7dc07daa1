-- Appends events. Sequence numbers have no gaps, and the time of a stream never goes back. The feed holds a reference to
-- each event, in commit order. Each event holds the position of its reference, so that both are removed together.
local stream_heads, grown_streams, undelivered, saved_heads = {}, {}, {}, {}
local awaited_kinds = {} -- kinds that a wait is pending for

-- Read the heads of many streams in one call.
local function load_heads(streams)
  for first = 1, #streams, MAX_CALL_VALUES do
    local last = math.min(first + MAX_CALL_VALUES - 1, #streams)
    local found = try('HMGET', NS .. 'stream_heads', unpack(streams, first, last))
    if found.err then
      read_failure(found)
      set_key_aside(NS .. 'stream_heads')
      found = {}
    end
    for i = first, last do saved_heads[streams[i]] = found[i - first + 1] or false end
  end
end

-- Read the head of a stream from its events, because the saved one is missing or cannot be read.
local function restore_head(stream)
  local head, from = {ms = now_text, seq = 0}, '+'
  local function is_event(entry) return entry[2][1] == 'body' and entry[2][3] == 'pos' end
  repeat
    local page = try('XREVRANGE', stream, from, '-', 'COUNT', 100)
    if page.err then break end -- the next append sets it aside
    for _, entry in ipairs(page) do
      if is_event(entry) and head.seq == 0 then
        local ms, seq = string.match(entry[1], '^(%d+)-(%d+)$')
        head.seq = tonumber(seq)
        if tonumber(ms) > now then head.ms = ms end
      end
      if is_event(entry) then head.first = entry[2][4] end
      from = '(' .. entry[1]
    end
  until #page == 0
  note_problem('', 'repaired', 'the head of stream ' .. string.sub(stream, 1, 200) .. ' was read from its events')
  return head
end

-- Add a member to a sorted set. A key of another type is set aside. Returns 0 if the member was there.
local function add_to_index(key, score, member)
  local added = try('ZADD', key, score, member)
  if type(added) ~= 'table' then return added end
  read_failure(added)
  set_key_aside(key)
  return call('ZADD', key, score, member)
end

-- Add a stream to the indexes. Returns whether it was there.
local function index_stream(stream)
  local added = add_to_index(NS .. 'streams', 0, stream)
  if added ~= 0 then add_to_index(type_index(stream), now_text, stream) end
  return added == 0
end

local function stream_head(stream)
  local head = stream_heads[stream]
  if head then return head end
  local saved = saved_heads[stream]
  if saved == nil then
    load_heads({stream})
    saved = saved_heads[stream]
  end
  if saved then
    local ms, seq, first = string.match(saved, '^(%d+) (%d+) (%d+%-%d+)$')
    if ms and #ms < 16 and #seq < 16 then
      head = {ms = ms, seq = tonumber(seq), first = first}
      if tonumber(ms) < now then head.ms = now_text end
    else
      head = restore_head(stream)
    end
  elseif index_stream(stream) then
    head = restore_head(stream)
  else
    head = {ms = now_text, seq = 0, is_new = true}
  end
  stream_heads[stream] = head
  grown_streams[#grown_streams + 1] = stream
  notify('stream:' .. stream)
  notify('events')
  return head
end

-- Another program added an entry with an id above ours: continue after it. Returns whether there was one.
local function pass_foreign_entry(stream, head)
  local info = redis.pcall('XINFO', 'STREAM', stream)
  if info.err then return false end
  local ms, seq = string.match(to_table(info)['last-generated-id'], '^(%d+)-(%d+)$')
  ms, seq = tonumber(ms), tonumber(seq)
  if ms >= 2 ^ 53 - 1 or ms < tonumber(head.ms) or (ms == tonumber(head.ms) and seq < head.seq) then return false end
  head.ms = string.format('%.0f', seq < head.seq and ms or ms + 1)
  return true
end

-- Start a new feed, because another program wrote its key. Returns the position of its first reference.
local function replace_feed(failure, stream, id)
  if not is_foreign_key(failure) then error(failure.err, 0) end
  set_key_aside(NS .. 'feed')
  return call('XADD', NS .. 'feed', '*', 'stream', stream, 'id', id)
end

-- `original` is the body before redaction, if it differs: only the index of kinds and the delivery have it. `is_named`: the
-- stream's name comes from a job, which any program may have written, so a key of that name is only replaced if it is known.
local function append(stream, body, kind, original, is_named)
  local head = stream_head(stream)
  head.seq = head.seq + 1
  local id = head.ms .. '-' .. head.seq
  local pos = try('XADD', NS .. 'feed', '*', 'stream', stream, 'id', id)
  if type(pos) == 'table' then pos = replace_feed(pos, stream, id) end
  local is_indexed, added = kind and kind ~= '', nil
  if is_indexed then
    added = redis.pcall('XADD', stream, id, 'body', body, 'pos', pos, 'kind', kind)
  else
    added = redis.pcall('XADD', stream, id, 'body', body, 'pos', pos)
  end
  if type(added) == 'table' then
    call('XDEL', NS .. 'feed', pos)
    head.seq = head.seq - 1
    if not pass_foreign_entry(stream, head) then
      read_failure(added)
      if is_named and head.is_new then error(added.err, 0) end
      set_key_aside(stream)
    end
    return append(stream, body, kind, original, is_named)
  end
  if not head.first then head.first = pos end
  if is_indexed then
    local index = NS .. 'kinds:' .. kind
    for n, at in ipairs({pos, '*', '*'}) do -- `*` if another program added an entry above it
      if n == 3 and is_foreign_key(added) then set_key_aside(index) end
      if original then
        added = redis.pcall('XADD', index, at, 'stream', stream, 'id', id, 'original', original)
      else
        added = redis.pcall('XADD', index, at, 'stream', stream, 'id', id)
      end
      if type(added) ~= 'table' then break end
    end
    undelivered[#undelivered + 1] = {kind, stream, id, pos, original or body}
  end
  return tonumber(head.ms), head.seq
end

-- Append the event that a claim starts. A stream that another program broke does not stop the claim.
local function append_started_event(stream, prefix, rest)
  if not prefix then return end
  local ok, failure = pcall(append, stream, prefix .. rest, nil, nil, true)
  if not ok then note_problem('', 'repaired', 'no event was appended to ' .. stream .. ': ' .. read_failure(failure)) end
end

local function flush_heads()
  for _, stream in ipairs(grown_streams) do
    local head = stream_heads[stream]
    if head.first then -- else the first append failed
      buffer_write('HSET', NS .. 'stream_heads', stream, head.ms .. ' ' .. head.seq .. ' ' .. head.first)
    end
  end
end

-- Run the body of a script, then write what is buffered. After an error too: events that were appended stay.
local function run_and_flush(body)
  local ok, failure = pcall(body)
  flush_heads()
  flush_all()
  if not ok then error(type(failure) == 'table' and failure.err or failure, 0) end
end
