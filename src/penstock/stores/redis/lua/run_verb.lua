-- Runs the verb that ARGV[6] names. If a queue with a broken key stops it, the error names that key.
local ok, reply = pcall(VERBS[ARGV[6]])
if not ok and not string.find(read_failure(reply), 'NQQUEUE ', 1, true) then
  for _, name in ipairs(call('SMEMBERS', NS .. 'queues')) do
    local broken = find_broken_key(base_key(name))
    if broken then error('NQQUEUE ' .. broken, 0) end
  end
end
if not ok then error(reply, 0) end
return {reply, publish(take_topics())}
