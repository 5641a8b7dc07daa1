-- What every script stands on: names, the time, and whom to wake. KEYS[1] is the channel of wake-ups; ARGV[1..4]:
-- namespace, queue prefix, now (by the server if empty), and who calls.
local call, ARGV = redis.call, ARGV
local NS, BULL = ARGV[1] .. ':', ARGV[2] .. ':'
local now = tonumber(ARGV[3])
local real = not now -- the clock is the server's
if real then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local stamp = string.format('%.0f', now) -- a number is written out anew each time it is passed to Redis

local topics, touched = {}, {}
local function touch(topic)
  if not touched[topic] then
    touched[topic] = true
    topics[#topics + 1] = topic
  end
end

-- What changed since it was last asked for.
local function take_topics()
  if #topics == 0 then return '' end
  local said = table.concat(topics, '\n')
  topics, touched = {}, {}
  return said
end

-- Says what changed to everyone else; the caller is told by the reply, so its own message has its name on it.
local function publish(said)
  if said ~= '' then call('PUBLISH', KEYS[1], ARGV[4] .. '\n' .. said) end
  return said
end

-- A flat list of fields and values as a table.
local function fields(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
