-- check: whether we still hold the lock, and whether somebody wants us to end. Read only.
-- KEYS: see promote
-- ARGV: 4 token, 5 ttl (ms) that it asks for, or 0 when it doesn't
-- Returns: {1, ms left, who cancelled us or nil} when held; {2} when given back; {0, who forced us out or nil, entry of a holder or nil} when lost
local token, ttl = ARGV[4], tonumber(ARGV[5])

local mark = redis.pcall('GET', lock)
if not is_held(token, mark) then return not_held(token, mark) end
local left = redis.call('PTTL', lock)
if mark ~= token then left = tonumber(redis.call('ZSCORE', holders, token)) - now end
if ttl > 0 then left = credible(left, ttl, token) end
return {1, left, word('cancelled', token)}
