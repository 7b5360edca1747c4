-- force: free the lock whoever holds it, or only the holder a person saw; its run is told by whom.
-- KEYS: 1 lock, 2 state, 3 meta, 4 index
-- ARGV: 1 id ('' for any), 2 by (JSON), 3 name, 4 channel
-- Returns: {1, meta of the holder or nil} when freed; {0} when free; {2, id, meta or nil} when another holds it
local lock, state, meta, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, by, name, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local KEPT = 30 * 24 * 3600 * 1000

local holder = redis.call('GET', lock)
if not holder then return {0} end
local who = redis.call('HGET', meta, holder)
local holder_id = string.sub(redis.sha1hex(holder), 1, 12)
if id ~= '' and id ~= holder_id then return {2, holder_id, who} end

redis.call('HSET', state, 'forced', holder, 'forced_by', by)
redis.call('PEXPIRE', state, KEPT)
redis.call('DEL', lock, meta)
redis.call('ZREM', index, name)
redis.pcall('PUBLISH', channel, 'released')
return {1, who}
