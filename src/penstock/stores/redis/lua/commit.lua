-- Units one after another, each with every check first and every write after.
growing = true
local at, reply = 6, {''}
while at <= #ARGV do
  at = read_unit(at)
  keep_unit()
  note_unit()
end
read_ahead()
guarded(function()
  for _, kept in ipairs(units) do
    use_unit(kept)
    answer(reply, check() or write())
  end
end)
reply[1] = publish()
return reply
