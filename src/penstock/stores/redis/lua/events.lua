-- Appends events. Sequence numbers have no gaps, and the time of a stream never goes back. The feed holds a reference to
-- each event, in commit order. Each event holds the position of its reference, so that both are removed together.
local stream_heads, grown_streams, undelivered, saved_heads = {}, {}, {}, {}
local awaited_kinds = {} -- kinds that a wait is pending for

-- Read the heads of many streams in one call.
local function load_heads(streams)
  for first = 1, #streams, MAX_CALL_VALUES do
    local last = math.min(first + MAX_CALL_VALUES - 1, #streams)
    local found = call('HMGET', NS .. 'stream_heads', unpack(streams, first, last))
    for i = first, last do saved_heads[streams[i]] = found[i - first + 1] end
  end
end

local function stream_head(stream)
  local head = stream_heads[stream]
  if head then return head end
  local saved = saved_heads[stream]
  if saved == nil then saved = call('HGET', NS .. 'stream_heads', stream) end
  if saved then
    local ms, seq, first = string.match(saved, '^(%d+) (%d+) (.+)$')
    head = {ms = ms, seq = tonumber(seq), first = first}
    if tonumber(ms) < now then head.ms = now_text end
  else
    head = {ms = now_text, seq = 0}
    call('ZADD', NS .. 'streams', 0, stream)
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

-- `original` is the body before redaction, if it differs: only the index of kinds and the delivery have it.
local function append(stream, body, kind, original)
  local head = stream_head(stream)
  head.seq = head.seq + 1
  local id = head.ms .. '-' .. head.seq
  local pos = call('XADD', NS .. 'feed', '*', 'stream', stream, 'id', id)
  local is_indexed, added = kind and kind ~= '', nil
  if is_indexed then
    added = redis.pcall('XADD', stream, id, 'body', body, 'pos', pos, 'kind', kind)
  else
    added = redis.pcall('XADD', stream, id, 'body', body, 'pos', pos)
  end
  if type(added) == 'table' then
    call('XDEL', NS .. 'feed', pos)
    head.seq = head.seq - 1
    if pass_foreign_entry(stream, head) then return append(stream, body, kind, original) end
    error(added.err, 0)
  end
  if not head.first then head.first = pos end
  if is_indexed then
    local index = NS .. 'kinds:' .. kind
    for _, at in ipairs({pos, '*'}) do -- `*` if another program added an entry above it
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
  local ok, failure = pcall(append, stream, prefix .. rest)
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
