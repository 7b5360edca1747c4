-- Tells whether a token holds the lock, for how long, and if not, why.
-- @include hold
-- @include notices

-- Returns true if the token holds the lock now. `value` is the lock key's value.
local function is_held(token, value)
  if value == token then return true end
  if type(value) ~= 'string' or not SHARED_VALUES[value] then return false end
  return (tonumber(redis.pcall('ZSCORE', holders, token) or 0) or 0) > now_ms
end

-- Returns how much of the remaining lease, by the server's clock, a holder may count on. No more than `ttl`, or than
-- its job has requested (in its entry), because that clock may have been set back.
local function credible(left, ttl, entry)
  if left <= ttl then return left end
  return math.max(ttl, math.min(left, tonumber(string.match(entry, '"extended":(%d+)') or 0)))
end

-- Returns the TTL that its run asks for, by its entry, if that contains it.
local function ttl_of(entry) return tonumber(string.match(entry, '"ttl":(%d+)')) end

-- Returns who wants a holder to end, or nil. A group's holders are all asked at once, up to a fence.
local function cancelled_by(token, entry)
  local by = notice('cancelled', token)
  if by then return by end
  local newest, who = string.match(redis.call('HGET', state, 'cancelled') or '', '^(%d+) (.*)$')
  if newest and fence_of(entry) <= tonumber(newest) and string.find(entry or '', '"instance":"', 1, true) then return who end
end

-- Returns the clock skew in an entry, in ms: how much earlier its run treats a lease as over, because the Redis
-- hosts' clocks may differ. In the entry, so that a job treats the lease as its run does, without an option.
local function skew_of(entry)
  return tonumber(string.match(entry, '"skew":(%d+)') or 0)
end

-- Returns the answer for a token that doesn't hold the lock. {2} if its own job has released the lock, otherwise {0,
-- who forced it out or nil, the entry of a present holder or nil}.
local function not_held(token, value)
  if notice('released', token) then return {2} end
  local other = false
  if type(value) == 'string' then
    if SHARED_VALUES[value] then value = redis.call('ZRANGE', holders, -1, -1)[1] or '' end
    other = redis.call('HGET', meta, value)
  end
  return {0, notice('forced', token), other}
end
