-- Appending events: gapless in their stream, the time never going back; the feed refers to each in the order of commits.
local heads, grown, told = {}, {}, {}

local function head_of(stream)
  local head = heads[stream]
  if head then return head end
  local kept = call('HGET', NS .. 'heads', stream)
  if kept then
    local ms, seq, first = string.match(kept, '^(%d+) (%d+) (.+)$')
    head = {ms = tonumber(ms), seq = tonumber(seq), first = first}
    if head.ms < now then head.ms = now end
  else
    head = {ms = now, seq = 0}
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
    call('SADD', NS .. 'kinds', kind)
    told[#told + 1] = {kind, stream, id, pos}
  end
  return head.ms, head.seq
end

local function keep_heads()
  for _, stream in ipairs(grown) do
    local head = heads[stream]
    call('HSET', NS .. 'heads', stream, head.ms .. ' ' .. head.seq .. ' ' .. head.first)
  end
end

-- Does the work of a script and keeps the heads, also when something goes wrong on the way: what was appended stays.
local function guarded(work)
  local ok, problem = pcall(work)
  keep_heads()
  if not ok then error(type(problem) == 'table' and problem.err or problem, 0) end
end

-- The last place given out in the order of all streams.
local function position()
  local last = call('XREVRANGE', NS .. 'feed', '+', '-', 'COUNT', 1)[1]
  return last and last[1] or '0-0'
end
