-- keep: extend this run's exclusive lease by the lock's key alone, while a cluster moves the keys to another node. Never shortens it.
-- KEYS[1] the lock
-- ARGV[1] token
-- ARGV[2] ttl (ms)
-- Returns 1 when extended; 0 when this token doesn't hold the lock, or shares it: only the other keys tell which
local lock, token, ttl = KEYS[1], ARGV[1], ARGV[2]
if redis.pcall('GET', lock) ~= token then return 0 end
if redis.call('PTTL', lock) < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
return 1
