-- forget: take a name whose lock is free out of the index (its holder died without releasing).
-- KEYS: 1 lock, 2 index
-- ARGV: 1 name
-- Returns: 1 when it was taken out, 0 when not
local lock, index = KEYS[1], KEYS[2]
local name = ARGV[1]

if redis.call('EXISTS', lock) == 1 then return 0 end
return redis.call('ZREM', index, name)
