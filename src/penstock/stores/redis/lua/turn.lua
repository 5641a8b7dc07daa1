-- One turn of a worker: units are committed, then jobs handed out. What is not plain goes the long way, whose functions are
-- made then. The reply is one flat list, of which Redis makes one piece; each list inside it would be sent by itself. It
-- begins with what the commit touched, how many values its receipts are, the time, when there is more to be had, what handing
-- out has touched, and queues of which nothing is left.
local reply, first = {'', 0, now, false, '', ''}, wanted > 0 and 11 + 6 * wanted or 7
local emptied, refused

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
  reply[1], reply[2] = take_topics(), #reply - 6
  if wanted == 0 then return end
  emptied = claim_plainly(reply)
  if emptied then return end
  begin_anew()
  if not claim_long then commit_long, claim_long = go_long() end
  emptied, refused = claim_long(reply)
end)
local changed, moved = reply[1], take_topics()
publish(changed ~= '' and moved ~= '' and changed .. '\n' .. moved or changed .. moved)
if refused then return redis.error_reply(refused) end
if wanted > 0 then reply[4], reply[5], reply[6] = next_due or false, moved, table.concat(emptied, '\n') end
return reply
