-- Ordered keys: of the open jobs of a key, the first one runs and the others are held. `nq:order:<key>` lists them in order,
-- `nq:ordered` the keys with held jobs, by the time their first job was last looked at.
local function order_of(base, key) return base .. 'nq:order:' .. key end

-- Return the first open job of a key. Jobs that have ended or are gone leave the key: other programs end and remove jobs
-- too, and know nothing of keys.
local function order_head(base, key)
  while true do
    local head = call('ZRANGE', order_of(base, key), 0, 0)[1]
    local job = head and try('HMGET', base .. head, 'name', 'finishedOn')
    if not head or (job[1] and not job[2]) then return head end
    call('ZREM', order_of(base, key), head)
    call('ZREM', base .. 'nq:held', head)
  end
end

local function release_held(id, queue, base)
  flush_writes()
  if call('ZREM', base .. 'nq:held', id) == 1 then
    local due = tonumber(call('HGET', base .. id, 'nq:due')) or 0
    if due > now then
      push_delayed(base, id, due)
    else
      if due > 0 then call('HSET', base .. id, 'delay', 0) end
      push_waiting(base, id, false, 'held')
    end
    notify('queue:' .. queue)
  end
end

-- Release the first open job of a key if it is held, because the one before it has ended or is gone.
local function release_head(base, key)
  local head = order_head(base, key)
  if head then release_held(head, string.sub(base, #BULL + 1, -2), base) end
  if call('ZCARD', order_of(base, key)) < 2 then call('ZREM', base .. 'nq:ordered', key) end
end

local function hold(base, id, number) call('ZADD', base .. 'nq:held', to_count(number and tostring(number)), id) end

-- Put a job behind the open jobs of its key, and hold it if there is one.
local function join_order(base, id, key, number, is_held)
  local last = call('ZREVRANGE', order_of(base, key), 0, 0, 'WITHSCORES')[2]
  call('ZADD', order_of(base, key), (last or 0) + 1, id)
  if is_held then
    hold(base, id, number)
    call('ZADD', base .. 'nq:ordered', now, key)
  end
end

-- Look at the first jobs of some keys: a worker of another program that ends one releases no other. A key is looked at once
-- a second, and a call looks at no more than 100. Returns whether it looked at any.
local function release_after_others(base)
  local keys = call('ZRANGEBYSCORE', base .. 'nq:ordered', '-inf', now - 1000, 'LIMIT', 0, 100)
  for _, key in ipairs(keys) do
    call('ZADD', base .. 'nq:ordered', now, key)
    release_head(base, key)
  end
  return #keys > 0
end
