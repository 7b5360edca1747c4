-- stop: ask a holder to end, as a newer run with --cancel-running does. It keeps the lock until its command has ended.
-- ARGV[4] id
-- ARGV[5] by (JSON)
-- Returns {1} when asked; {2} when no process watches over that hold; {0} when no holder has this id
-- @include lock
-- @include holders
local only, by = ARGV[4], ARGV[5]

local value = lock_value()
if type(value) == 'table' then return value end
if not value or value == FROZEN then return {0} end
local tokens = {value}
if SHARED_VALUES[value] then tokens = redis.call('ZRANGE', holders, 0, -1) end

for _, token in ipairs(tokens) do
  if id(token) == only then
    if not string.find(redis.call('HGET', meta, token) or '', '"instance":"', 1, true) then return {2} end
    -- A write that a full server accepts comes first: the holder may be what fills it.
    redis.call('PEXPIRE', state, int_text(2 * RETENTION))
    post_notice('cancelled', token, by)
    -- Written so that the runs that track the key check their lock.
    redis.call('SET', lock, value, 'KEEPTTL')
    return {1}
  end
end
return {0}
