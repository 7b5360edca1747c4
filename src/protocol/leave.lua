-- leave: record the end of a guard. After the last one the lock is freed, if the hold's run is over.
-- ARGV[4] token of the hold
-- ARGV[5] id of the guard
-- Returns {1} when the guard has left
-- @include lock

return (function()

-- @include guards

local token, guard = ARGV[4], ARGV[5]

local gone = redis.pcall('HDEL', guards, guard)
-- A key of another type isn't redlock's. Any other error goes to the caller: a demoted server, for example, which
-- must be asked on its primary.
if type(gone) == 'table' and not string.find(gone.err, 'WRONGTYPE', 1, true) then return gone end
post_notice('over', guard, '', A_WHILE)
local entry = redis.pcall('HGET', meta, token)
local value = lock_value()
local hold = read_hold(entry)
if hold.phase ~= 'kept' or hold.number == '' or not is_held(token, value) or guarded_for(token, entry) > 0 then return {1} end
local left = hold.number - now_ms
if left > 0 then
  keep_hold(token, value, entry, left)
else
  if not end_hold(token, value) then retire_name(value == token) end
end
return {1}

end)()
