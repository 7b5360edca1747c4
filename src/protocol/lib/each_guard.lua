-- The guards of a lock.
-- KEYS[11] guards: "<until (ms)> <id of the hold> <since (ms)> <who>" by the id of the guard

local guards = KEYS[11]
local MOST_GUARDS = 1000 -- the most guards that a lock has

-- Calls `look` with each field of a hash of guards, and its value. A key of another type has none.
local function each_guard(look)
  local cursor = '0'
  repeat
    local next, fields = unpack(redis.pcall('HSCAN', guards, cursor, 'COUNT', MOST_GUARDS))
    for n = 1, #(fields or {}), 2 do look(fields[n], fields[n + 1]) end
    cursor = next or '0'
  until cursor == '0'
end
