-- One turn of a worker: units are committed, then jobs handed out. What is not plain goes the long way, whose functions are made
-- then. The reply is one flat list, of which Redis makes one piece; each list inside it would be sent by itself. What has
-- no fixed length comes after its count.
local reply, first, changed, work, refused = {'', 0}, wanted > 0 and 11 + 6 * wanted or 7, '', nil, nil

-- What was put off is written, and queues are looked at anew.
local function begin_anew()
  catch_up()
  queues = {}
end

guarded(function()
  local commit_long, claim_long
  if first <= #ARGV and not commit_plain(first, reply) then
    commit_long, claim_long = go_long()
    commit_long(first, reply)
    begin_anew()
  end
  changed = take_topics()
  if wanted == 0 then return end
  work = claim_plainly()
  if work then return end
  begin_anew()
  if not claim_long then commit_long, claim_long = go_long() end
  work, refused = claim_long()
end)
local moved = take_topics()
publish(changed ~= '' and moved ~= '' and changed .. '\n' .. moved or changed .. moved)
if refused then return redis.error_reply(refused) end
reply[1], reply[2] = changed, #reply - 2
if wanted == 0 then return reply end

local said = #reply
reply[said + 1], reply[said + 2], reply[said + 3], reply[said + 4] = now, next_due or false, moved, #work.emptied
said = said + 4
for n, name in ipairs(work.emptied) do reply[said + n] = name end
said = said + #work.emptied
local rows = work.rows
for n = 1, #rows do reply[said + n] = rows[n] end
return reply
