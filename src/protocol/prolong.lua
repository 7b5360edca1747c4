-- prolong: extend our exclusive lease where that is all there is to do, as it usually is; what else may be to do is for `renew`.
-- KEYS[1] the lock
-- KEYS[2] meta
-- KEYS[3] the notice that somebody wants it to end
-- ARGV[1] token
-- ARGV[2] ttl (ms)
-- ARGV[3] how long meta lasts then: 30 days longer (ms)
-- Returns ttl when extended; 0 when nothing was changed, and `renew` is to be asked
-- @constant PLAIN_HOLD of hold
local lock, meta, token, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

-- It is lost or released, or a group's, or a key of another type.
if redis.pcall('GET', lock) ~= token then return 0 end
-- It has no expiry, or lasts longer than we ask for: it was extended, or the clock was set back.
local left = redis.call('PTTL', lock)
if left < 0 or left > tonumber(ttl) then return 0 end
-- Its grant isn't confirmed, or not by the replicas; it has guards; its run is over; or nothing is known of it.
local entry = redis.pcall('HGET', meta, token)
if type(entry) ~= 'string' or not string.find(entry, PLAIN_HOLD) then return 0 end
-- Somebody wants it to end.
if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
redis.call('PEXPIRE', lock, ttl)
redis.call('PEXPIRE', meta, ARGV[3])
return tonumber(ttl)
