-- history: the holds of a lock that are over, and those that aren't or that ended without a word. Read only.
-- KEYS: see promote
-- ARGV: none
-- Returns: {server time (ms), records (the newest first), {id, 1 when held, 0 when its lease has ended or 2 when it was lost, when (ms; of one that is held, the end of its lease), entry}…}
local mark = redis.pcall('GET', lock)
local live = {}
local all = redis.call('HGETALL', meta)
local ends = now + redis.call('PTTL', meta) - KEPT
for n = 1, #all, 2 do
  local token, entry = all[n], all[n + 1]
  local _, phase = string.match(entry, PHASE)
  if phase == 'held' then
    local lease_end = tonumber(redis.call('ZSCORE', holders, token) or ends)
    local how, ended = 1, lease_end
    if not is_held(token, mark) then
      how, ended = lease_end > now and 2 or 0, math.min(lease_end, now)
    end
    live[#live + 1] = {id(token), how, digits(ended), entry}
  end
end
return {digits(now), redis.call('LRANGE', history, 0, -1), live}
