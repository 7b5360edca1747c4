-- freeze: let the holders finish, and admit no other holder, for a time.
-- ARGV[4] how long (ms)
-- ARGV[5] who: the run that freezes it (JSON)
-- Returns {number of holders, entry of a holder or nil, who had frozen it before or nil}
-- @include lock
-- @include queue
-- @include names
-- @include freezes
local long, who = tonumber(ARGV[4]), ARGV[5]

local before = freeze and string.match(freeze, '^%d+ %d+ (.*)$')
local until_ms = now_ms + long
frozen, line = until_ms, exempt
local value = lock_value()
if type(value) == 'table' then return value end
redis.call('HSET', state, 'frozen', table.concat({int_text(until_ms), int_text(now_ms), who}, ' '))
redis.call('PEXPIRE', state, int_text(2 * RETENTION))
note_freeze(until_ms)
index_name(long)
-- Tells the waiters why they wait.
notify(queue, 0, 99, 'frozen')

local count, entry = 1, false
if not value or value == FROZEN then
  clear_lock()
  count, value = 0, FROZEN
elseif SHARED_VALUES[value] then
  count, entry = redis.call('ZCARD', holders), redis.call('HGET', meta, redis.call('ZRANGE', holders, 0, 0)[1] or '')
else
  entry = redis.call('HGET', meta, value)
end
-- Waiters that ignore freezes may have waited behind one that this freeze keeps out.
grant_next(value)
return {count, entry, before}
