-- check: report whether this run still holds the lock, and whether a newer run wants it to end. Read only.
-- ARGV[4] token
-- ARGV[5] ttl (ms) that the run asks for, or 0 if it doesn't say
-- Returns {1, ms left, who cancelled it or nil} when held; {2} when released; {0, who forced it out or nil, entry of a holder or nil} when lost
-- @include lock
-- @include held
local token, ttl = ARGV[4], tonumber(ARGV[5])

local value = redis.pcall('GET', lock)
if not is_held(token, value) then return not_held(token, value) end
local left = redis.call('PTTL', lock)
if value ~= token then left = tonumber(redis.call('ZSCORE', holders, token)) - now_ms end
local entry = redis.pcall('HGET', meta, token)
if type(entry) ~= 'string' then entry = '' end
local hold = read_hold(entry)
-- The lock was released, and is kept for its guards.
if hold.phase == 'kept' and hold.mark == ':' and (ttl > 0 or notice('released', token)) then return {2} end
if ttl > 0 then left = credible(left, ttl, entry) end
return {1, left, cancelled_by(token, entry) or false}
