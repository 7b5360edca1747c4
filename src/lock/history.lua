-- history: the holds of a lock that are over, those that aren't, and those that ended without a release. Read only.
-- KEYS[10] skips: the runs that ended without the lock; or none, if they aren't asked for
-- Returns {server time (ms), records (the newest first), {id, 1 when held, 0 when its lease has ended or 2 when it was lost, when (ms; of one that is held, the end of its lease), entry}…, skips (the newest first)}
-- @include lock
-- @include held
-- @include record
local value = redis.pcall('GET', lock)
local live = {}
local all = redis.call('HGETALL', meta)
local ends = now_ms + redis.call('PTTL', meta) - RETENTION
for n = 1, #all, 2 do
  local token, entry = all[n], all[n + 1]
  local _, phase = string.match(entry, PHASE)
  if phase == 'held' then
    local lease_end = tonumber(redis.call('ZSCORE', holders, token) or ends)
    local how, ended = 1, lease_end
    if not is_held(token, value) then
      how, ended = lease_end > now_ms and 2 or 0, math.min(lease_end, now_ms)
    end
    live[#live + 1] = {id(token), how, int_text(ended), entry}
  end
end
local skipped = KEYS[10] and redis.pcall('LRANGE', KEYS[10], 0, -1)
if type(skipped) ~= 'table' or skipped.err then skipped = {} end
return {int_text(now_ms), redis.call('LRANGE', history, 0, -1), live, skipped}
