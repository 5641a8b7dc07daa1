-- Deletes a job with all that belongs to it.

-- Delete memos when no job can read them any more. A job that continues another has its scope, and a dead letter can
-- still be redriven into one.
local function delete_unused_memos(scope)
  if existing_queue(scope) or existing_queue(scope .. '.dlq') then return end
  if #call('ZRANGEBYLEX', NS .. 'memo_scopes', '[' .. scope .. '\n', '(' .. scope .. '\11', 'LIMIT', 0, 1) == 0 then
    call('DEL', NS .. 'memos:' .. scope)
  end
end

-- Notify the parent's queue after a child changed. BullMQ's scripts move the parent; we wake our workers and copy its due
-- time to our field.
local function notify_parent_queue(parent)
  if not parent or string.sub(parent, 1, #BULL) ~= BULL then return end
  local queue, id = string.match(string.sub(parent, #BULL + 1), '^(.*):([^:]*)$')
  if not queue then return end
  local due = call('ZSCORE', base_key(queue) .. 'delayed', id)
  if due then call('HSET', parent, 'nq:due', math.floor(tonumber(due) / 0x1000)) end
  notify('queue:' .. queue)
end

-- Delete a job that no worker holds. Returns its memo scope.
local function delete_job(base, id, set)
  local job = call('HMGET', base .. id, 'nq:scope', 'nq:run', 'parentKey', 'nq:order_key', 'nq:error_group')
  remove_from_state(base, id, set)
  bull_removeJob({base .. id, base .. 'repeat'}, {id, '0', base})
  forget_queue(id)
  if job[1] then call('ZREM', NS .. 'memo_scopes', job[1] .. '\n' .. id) end
  if job[2] then call('ZREM', NS .. 'run:' .. job[2] .. ':jobs', id) end
  notify_parent_queue(job[3])
  if job[4] then
    call('ZREM', order_of(base, job[4]), id)
    release_head(base, job[4])
  end
  if job[5] then
    call('ZREM', base .. 'nq:error:' .. job[5], id)
    if call('ZCARD', base .. 'nq:error:' .. job[5]) == 0 then call('SREM', base .. 'nq:errors', job[5]) end
  end
  return job[1] or id
end
