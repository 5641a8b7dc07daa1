-- Writes of many jobs into one key, put off and made by one call: at the end of the script, or before anyone reads them.
local later, order, locks = {}, {}, {}
local LONGEST = 2000 -- values in one call: Lua passes no more than some thousands

local function write_line(line)
  later[line.name] = nil
  call(unpack(line))
end

local function write_later(command, key, value, second)
  local name = command .. key
  local line = later[name]
  if not line then
    line = {command, key, name = name}
    later[name] = line
    order[#order + 1] = line
  end
  line[#line + 1] = value
  line[#line + 1] = second
  if #line > LONGEST then write_line(line) end
end

-- One call for as many values as it takes.
local function call_with(values, command, key)
  for first = 1, #values, LONGEST do
    local last = math.min(first + LONGEST - 1, #values)
    if key then call(command, key, unpack(values, first, last)) else call(command, unpack(values, first, last)) end
  end
end

-- Which queue each job is in: what is known, and what is still to be written.
local where, placed = {}, {}

local function settle()
  local lines, open, new = order, locks, {}
  order, locks = {}, {}
  for _, line in ipairs(lines) do
    if later[line.name] == line then write_line(line) end
  end
  call_with(open, 'DEL')
  for id, queue in pairs(placed) do
    new[#new + 1] = id
    new[#new + 1] = queue
  end
  placed = {}
  call_with(new, 'HSET', NS .. 'where')
end
