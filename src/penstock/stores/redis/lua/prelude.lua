-- Part of every script: key prefixes, the time, and the topics to notify. KEYS[1] is the wake-up channel. ARGV[1..4]:
-- namespace, queue prefix, now in ms (empty: the server's clock), and the id of the calling process.
local call, ARGV = redis.call, ARGV
local NS, BULL = ARGV[1] .. ':', ARGV[2] .. ':'
local now = tonumber(ARGV[3])
local is_server_clock = not now
if is_server_clock then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local now_text = string.format('%.0f', now) -- Lua would format the number for every call

local topics, notified = {}, {}
local function notify(topic)
  if not notified[topic] then
    notified[topic] = true
    topics[#topics + 1] = topic
  end
end

-- Return the topics since the last call, and start a new list.
local function take_topics()
  if #topics == 0 then return '' end
  local text = table.concat(topics, '\n')
  topics, notified = {}, {}
  return text
end

-- Notify the other processes. The caller gets the topics in the reply and ignores the message that carries its own id.
local function publish(text)
  if text ~= '' then call('PUBLISH', KEYS[1], ARGV[4] .. '\n' .. text) end
  return text
end

-- Convert a flat list of fields and values to a table.
local function to_table(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
