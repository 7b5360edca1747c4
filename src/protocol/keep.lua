-- keep: extend our exclusive lease by the lock's key alone, while a cluster moves the keys to another node. Never shortens it.
-- KEYS[1] the lock
-- ARGV[1] token
-- ARGV[2] ttl (ms)
-- Returns 1 when extended; 0 when the lock isn't ours alone, or not any more: which of these, the other keys would say
local lock, token, ttl = KEYS[1], ARGV[1], ARGV[2]
if redis.pcall('GET', lock) ~= token then return 0 end
if redis.call('PTTL', lock) < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
return 1
