-- history: the holds of a lock that are over, and those that aren't or that ended without a word. Read only.
-- KEYS: see promote
-- ARGV: none
-- Returns: {server time (ms), records (the newest first), {id, 1 when held or 0, end of its lease (ms), entry}…}
local mark = redis.pcall('GET', lock)
local live = {}
local all = redis.call('HGETALL', meta)
local lease_end = now + redis.call('PTTL', meta) - KEPT
for n = 1, #all, 2 do
  local token, entry = all[n], all[n + 1]
  local _, phase = string.match(entry, PHASE)
  if phase == 'held' then
    local till = tonumber(redis.call('ZSCORE', holders, token) or lease_end)
    live[#live + 1] = {id(token), is_held(token, mark) and 1 or 0, digits(till), entry}
  end
end
return {digits(now), redis.call('LRANGE', history, 0, -1), live}
