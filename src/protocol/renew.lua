-- renew: extend this run's lease. Never shortens a longer one that was requested, never creates a lock that is gone.
-- ARGV[4] token
-- ARGV[5] ttl (ms)
-- ARGV[6] notify (1: the run that tracks the lock must check how long it lasts; 0)
-- Returns {1, ms left, fence, limit, slot, who wants the run to end or nil} when renewed; {2} when released; {0, who forced it out or nil, entry of a holder or nil} when lost

-- @include lock

-- A single function, as in acquire.
return (function()

-- @include lease

local YEAR = 365 * 24 * 3600 * 1000 -- the longest lease, ms
local token, ttl, notify = ARGV[4], tonumber(ARGV[5]), ARGV[6]

-- A key that isn't a string any more isn't this run's lock either.
local value = redis.pcall('GET', lock)
if not is_held(token, value) then return not_held(token, value) end
-- The run is over, and the lock is kept for its guards; a late request must not prolong that.
local hold = read_hold(redis.call('HGET', meta, token))
if hold.phase == 'kept' and hold.mark == ':' then return {2} end
-- The job must have the lock for that long, even if a server whose clock is ahead takes over.
if notify == '1' then ttl = math.max(ttl, math.min(YEAR, ttl + skew_of(redis.call('HGET', meta, token) or ''))) end
local left = extend_lease(token, value, ttl)
local entry = confirm(token, value, ttl)
if notify == '1' or ttl > (ttl_of(entry) or ttl) then
  -- Tells the run how much of the lease is credible, and keeps the run's own renewals, which ask for less, from
  -- shortening it.
  local extended = '{"extended":' .. int_text(math.max(ttl, credible(left, ttl, entry))) .. ','
  entry = string.gsub(string.gsub(entry, '"extended":%d+,', '', 1), '{', extended, 1)
  if entry ~= '' then redis.call('HSET', meta, token, entry) end
end
-- An exclusive lock needs no write: the change of its expiry already notifies its run.
if notify == '1' and value ~= token then redis.call('SET', lock, value, 'KEEPTTL') end
return {1, credible(left, ttl, entry), fence_of(entry), tonumber(hold.limit or 1), tonumber(hold.slot or 0), cancelled_by(token, entry) or false}

end)()
