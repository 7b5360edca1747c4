-- history: list the holds of a lock that are over, that go on, and that ended without a release. Read only.
-- KEYS[12] skips: the runs that ended without the lock; missing if the caller doesn't want them
-- Returns {server time (ms), records (the newest first), {id, 1 when held, 0 when its lease has ended or 2 when it was lost, end of the hold (ms), or of its lease if it is held, entry}…, skips (the newest first)}
-- @include lock
-- @include held
-- @include record
local LIVE = 250 -- the most holds without a record that are returned

local value = redis.pcall('GET', lock)
local live = {}
for _, hold in ipairs(some_holds(LIVE)) do
  if is_at_work(hold.entry) then
    local how, ended = 1, hold.lease_end
    if not is_held(hold.token, value) then how, ended = ended > now_ms and 2 or 0, math.min(ended, now_ms) end
    live[#live + 1] = {id(hold.token), how, int_text(ended), hold.entry}
  end
end
local skipped = KEYS[12] and redis.pcall('LRANGE', KEYS[12], 0, -1)
if type(skipped) ~= 'table' or skipped.err then skipped = {} end
return {int_text(now_ms), redis.call('LRANGE', history, 0, -1), live, skipped}
