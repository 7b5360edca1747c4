-- stop: ask a holder to end, as a newer run with --cancel-in-progress does. The holder keeps the lock until its command has ended.
-- ARGV[4] id
-- ARGV[5] by (JSON)
-- ARGV[6] cursor of the search among the holders ('0' at first)
-- Returns {1} when asked; {2} when no process supervises that hold; {0} when no holder has this id; {4, next cursor} when there are more holders to compare
-- @include lock
-- @include holders
-- @include search
-- @include messages
local only, by = ARGV[4], ARGV[5]

local value = lock_value()
if type(value) == 'table' then return value end
if not value or value == FROZEN then return {0} end
local token, more = id(value) == only and value, nil
if SHARED_VALUES[value] then token, more = find_token(holders, only, ARGV[6]) end
if more then return {4, more} end
if not token then return {0} end
if not string.find(redis.call('HGET', meta, token) or '', '"instance":"', 1, true) then return {2} end
-- Comes first, because a full server accepts it: the holder itself may be what fills the server.
redis.call('PEXPIRE', state, int_text(2 * RETENTION))
-- The first request is remembered, except that a later one with a reason replaces one without.
local function has_reason(who) return string.find(who, '"reason":"', 1, true) end
local first = notice('cancelled', token)
if not first or (has_reason(by) and not has_reason(first)) then
  post_to_holder('cancelled', token, with_time(by), redis.call('PTTL', lock))
end
-- Writes the key again, so that the runs that track it check their lock.
redis.call('SET', lock, value, 'KEEPTTL')
-- Tells the waiters.
notify(queue, 0, 99, 'stopping')
return {1}
