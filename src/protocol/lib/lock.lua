-- The keys of a lock, the part of its state that every script needs, and the time.
-- KEYS[1] the lock: a holder's token, or one of the values for several holders
-- KEYS[2] state: the last fence and ticket, a freeze
-- KEYS[3] meta: the entry of each holder
-- KEYS[4] holders: the end of each one's lease, if several hold the lock
-- KEYS[5] queue: the tokens of the waiters, by turn
-- KEYS[6] waiters: the entry of each waiter
-- KEYS[7] history: the holds that are over
-- KEYS[8] index: the names in use, of all locks
-- KEYS[9] slots: the slots in use, and the holders' limits
-- KEYS[10] exempt: the waiters that ignore freezes, by turn
-- ARGV[1] the name of the lock
-- ARGV[2] prefix of the names of the waiters' channels, and of notices
-- ARGV[3] how many holds the history keeps
--
-- A full server refuses a script whose first write needs memory, but accepts all writes after a first one that needs
-- none (UNLINK, HDEL, ZREM, PEXPIRE). So scripts that free, extend or hand over begin with one of these; scripts that
-- take a lock or a new place in the queue don't, and are refused.
local lock, state, meta, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local queue, waiters, history, index, slots, exempt = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local name, channels, history_size = ARGV[1], ARGV[2], tonumber(ARGV[3])

local DAY = 24 * 3600 * 1000 -- ms
local RETENTION = 30 * DAY -- how long history and state outlive their last use
local REFRESHED = 22 * 3600 * 1000 -- age after which a renewal refreshes these: about once a day, ms
local IN_USE = 2 * DAY -- how long the index keeps a name in use, unless the lock is free earlier
local SHARED = 1000000000 -- the limit of a shared request, which has none
-- The value of the lock key while a group holds the lock, so that plain clients stay out.
local SHARED_VALUES = {['redlock:shared'] = true, ['redlock:slots'] = true}
-- The value of the lock key while the lock is frozen and has no holder.
local FROZEN = 'redlock:frozen'

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local last_fence, freeze, succeeded, superseded, superseded_exempt =
  unpack(redis.call('HMGET', state, 'fence', 'frozen', 'succeeded', 'superseded', 'superseded_exempt'))
-- The tickets of the last runs that superseded the waiters before them: waiters that freezes keep out, and waiters
-- that ignore freezes.
superseded, superseded_exempt = tonumber(superseded or 0) or 0, tonumber(superseded_exempt or 0) or 0
-- The end of the freeze, until which no new holder is admitted; 0 if the lock isn't frozen.
local frozen = tonumber(string.match(freeze or '', '^%d+') or 0)
if frozen <= now_ms then frozen, freeze = 0, false end
-- The waiters that may get the lock next.
local line = frozen > 0 and exempt or queue
