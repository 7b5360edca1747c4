-- pass: a word that admits guards to a hold, for those that don't get its token.
-- ARGV[4] token of the hold
-- ARGV[5] pass
-- ARGV[6] how many guards it admits
-- ARGV[7] for how long (ms)
-- Returns {1} when it admits them; {2} when the run is over; {0, who forced it out or nil, entry of a holder or nil} when the lock is lost; {3} when there are too many guards and passes
-- @include lock

return (function()

-- @include guards

local token, pass, most, lasts = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])

local value = redis.pcall('GET', lock)
if not is_held(token, value) then return not_held(token, value) end
local entry = redis.pcall('HGET', meta, token)
if type(entry) ~= 'string' then return {0, false, false} end
if string.match(entry, '^%d+ %d+ %d+ %d+ %d+ kept[: ]') then return {2} end
if not has_room() then return {3} end
redis.call('HSET', guards, 'pass:' .. redis.sha1hex(pass), table.concat({int_text(now_ms + lasts), most, '', token}, ' '))
keep_guards(lasts)
return {1}

end)()
