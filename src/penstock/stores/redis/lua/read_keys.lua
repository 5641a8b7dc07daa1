-- Reads go on where another program wrote a key as another type: there is nothing in it. `doctor` names the key.
local function empty_reply(failure, command, ...)
  if not string.find(failure.err, 'WRONGTYPE', 1, true) then return redis.call(command, ...) end
  if string.find(command, 'CARD$') or string.find(command, 'LEN$') or string.find(command, 'COUNT$') then return 0 end
  if command == 'HEXISTS' or command == 'SISMEMBER' then return 0 end
  if command == 'HMGET' or string.find(command, 'RANGE') or string.find(command, 'ALL$') then return {} end
  if command == 'SMEMBERS' or command == 'ZMSCORE' then return {} end
  return false -- a single value
end

local function call(...)
  local reply = try(...)
  if type(reply) == 'table' and reply.err then return empty_reply(reply, ...) end
  return reply
end
