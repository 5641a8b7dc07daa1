-- Appending events: gapless in their stream, the time never going back; the feed refers to each in the order of commits.
local heads, grown, told, kept_heads = {}, {}, {}, {}
local kinds, listened = {}, {} -- kinds that are listed, and whether anyone waits for them

-- Reads where many streams end in one call.
local function know_heads(streams)
  for first = 1, #streams, LONGEST do
    local last = math.min(first + LONGEST - 1, #streams)
    local found = call('HMGET', NS .. 'heads', unpack(streams, first, last))
    for i = first, last do kept_heads[streams[i]] = found[i - first + 1] end
  end
end

local function head_of(stream)
  local head = heads[stream]
  if head then return head end
  local kept = kept_heads[stream]
  if kept == nil then kept = call('HGET', NS .. 'heads', stream) end
  if kept then
    local ms, seq, first = string.match(kept, '^(%d+) (%d+) (.+)$')
    head = {ms = ms, seq = tonumber(seq), first = first}
    if tonumber(ms) < now then head.ms = stamp end
  else
    head = {ms = stamp, seq = 0}
    call('ZADD', NS .. 'streams', 0, stream)
  end
  heads[stream] = head
  grown[#grown + 1] = stream
  touch('stream:' .. stream)
  touch('events')
  return head
end

local function append(stream, body, kind)
  local head = head_of(stream)
  head.seq = head.seq + 1
  local id = head.ms .. '-' .. head.seq
  call('XADD', stream, id, 'b', body)
  local pos = call('XADD', NS .. 'feed', '*', 's', stream, 'i', id)
  if not head.first then head.first = pos end
  if kind and kind ~= '' then
    call('XADD', NS .. 'told:' .. kind, pos, 's', stream, 'i', id)
    if not kinds[kind] then call('SADD', NS .. 'kinds', kind) end
    kinds[kind] = true
    told[#told + 1] = {kind, stream, id, pos, body}
  end
  return tonumber(head.ms), head.seq
end

local function keep_heads()
  for _, stream in ipairs(grown) do
    local head = heads[stream]
    if head.first then -- else the first append went wrong, and says why
      write_later('HSET', NS .. 'heads', stream, head.ms .. ' ' .. head.seq .. ' ' .. head.first)
    end
  end
end

-- Does the work of a script and writes what was put off, also when something goes wrong on the way: what was appended
-- stays.
local function guarded(work)
  local ok, problem = pcall(work)
  keep_heads()
  catch_up()
  if not ok then error(type(problem) == 'table' and problem.err or problem, 0) end
end
