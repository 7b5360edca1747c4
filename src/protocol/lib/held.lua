-- Whether a token holds the lock, for how long, and if not, why.
-- @include hold
-- @include notices

-- Whether the token holds the lock now. `value` is that of the lock key.
local function is_held(token, value)
  if value == token then return true end
  if type(value) ~= 'string' or not SHARED_VALUES[value] then return false end
  return (tonumber(redis.pcall('ZSCORE', holders, token) or 0) or 0) > now_ms
end

-- How much of the remaining lease, by the server's clock, a holder may count on: no more than it asks for, or
-- than its job has asked for, as its entry says. That clock may have been set back meanwhile.
local function credible(left, ttl, entry)
  if left <= ttl then return left end
  return math.max(ttl, math.min(left, tonumber(string.match(entry, '"extended":(%d+)') or 0)))
end

-- The TTL that its run asks for, by its entry, if that says so.
local function ttl_of(entry) return tonumber(string.match(entry, '"ttl":(%d+)')) end

-- Who wants a holder to end, or nil: this one, or all that had a group's lock by then.
local function cancelled_by(token, entry)
  local by = notice('cancelled', token)
  if by then return by end
  local newest, who = string.match(redis.call('HGET', state, 'cancelled') or '', '^(%d+) (.*)$')
  if newest and fence_of(entry) <= tonumber(newest) and string.find(entry or '', '"instance":"', 1, true) then return who end
end

-- How much sooner than here its run counts a lease as over: what the clocks of the Redis hosts may differ, ms.
-- It is in the entry, so that a job needs no option to count as its run does.
local function skew_of(entry)
  return tonumber(string.match(entry, '"skew":(%d+)') or 0)
end

-- The answer for a token that doesn't hold the lock: {0, who forced it out or nil, the entry of a
-- present holder or nil}, or {2} when it released the lock itself.
local function not_held(token, value)
  if notice('released', token) then return {2} end
  local other = false
  if type(value) == 'string' then
    if SHARED_VALUES[value] then value = redis.call('ZRANGE', holders, -1, -1)[1] or '' end
    other = redis.call('HGET', meta, value)
  end
  return {0, notice('forced', token), other}
end
