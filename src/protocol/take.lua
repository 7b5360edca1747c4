-- take: take an exclusive lock in the usual case, if nothing else needs doing; `acquire` does all the rest.
-- KEYS[1] the lock
-- KEYS[2] state
-- KEYS[3] meta
-- KEYS[4] holders
-- KEYS[5] queue
-- KEYS[8] index
-- KEYS[9] slots
-- ARGV[1] the name of the lock
-- ARGV[2] prefix of the names of notices
-- ARGV[4] token
-- ARGV[5] ttl (ms)
-- ARGV[7] who: the run, its entry in JSON
-- Returns {1, fence, 1} when held; 0 when nothing was changed, and the caller must use `acquire`
-- @constant DAY, RETENTION, IN_USE of lock
-- @include text
local state, meta, token, ttl = KEYS[2], KEYS[3], ARGV[4], ARGV[5]

-- The lock has a holder, waiters, or remains of either.
if redis.call('EXISTS', KEYS[1], meta, KEYS[4], KEYS[5], KEYS[9]) > 0 then return 0 end
local time, last, freeze = redis.call('TIME'), unpack(redis.call('HMGET', state, 'fence', 'frozen'))
-- The lock is frozen, or this is its first grant of the day.
if freeze and tonumber(string.match(freeze, '^%d+') or 0) > time[1] * 1000 then return 0 end
if not last or math.floor(last / (1000 * DAY)) ~= math.floor(time[1] * 1000 / DAY) then return 0 end
-- A notice for this token shows that an earlier request of the same run has been here.
local function notice(kind) return ARGV[2] .. kind .. id(token) end
if redis.call('EXISTS', notice('removed:'), notice('cancelled:'), notice('left:')) > 0 then return 0 end

-- Times are joined as texts, because formatting a number takes half as long as a command.
local micros = string.sub('00000' .. time[2], -6)
local fence = time[1] .. micros
if tonumber(last) >= tonumber(fence) then fence = int_text(last + 1) end
redis.call('HSET', state, 'fence', fence)
redis.call('SET', KEYS[1], token, 'PX', ttl)
redis.call('HSET', meta, token, table.concat({fence, time[1] .. string.sub(micros, 1, 3), '1 1 0 held', ARGV[7]}, ' '))
redis.call('PEXPIRE', meta, ttl + RETENTION)
-- Another client may have deleted the index.
if redis.pcall('ZADD', KEYS[8], time[1] * 1000 + IN_USE, ARGV[1]) == 1 then redis.call('PEXPIRE', KEYS[8], 2 * RETENTION) end
return {1, fence, 1}
