-- prolong: extend this run's exclusive lease, in the usual case; `renew` does all the rest.
-- KEYS[1] the lock
-- KEYS[2] meta
-- KEYS[3] the notice that somebody wants this run to end
-- ARGV[1] token
-- ARGV[2] ttl (ms)
-- ARGV[3] new expiry of meta: 30 days after the lease (ms)
-- Returns ttl when extended; 0 when nothing was changed, and the caller must use `renew`
-- @constant PLAIN_HOLD of hold
local lock, meta, token, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

-- The lock is lost or released, a group's, or a key of another type.
if redis.pcall('GET', lock) ~= token then return 0 end
-- The lock has no expiry, or lasts longer than the TTL, because it was extended or the clock was set back.
local left = redis.call('PTTL', lock)
if left < 0 or left > tonumber(ttl) then return 0 end
-- Its grant isn't confirmed, or not by the replicas; it has guards; its run is over; or it has no entry.
local entry = redis.pcall('HGET', meta, token)
if type(entry) ~= 'string' or not string.find(entry, PLAIN_HOLD) then return 0 end
-- Somebody wants this run to end.
if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
redis.call('PEXPIRE', lock, ttl)
redis.call('PEXPIRE', meta, ARGV[3])
return tonumber(ttl)
