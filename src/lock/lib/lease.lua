-- Extending leases, and confirming grants.
-- @include held
-- @include queue
-- @include names

local FIRST_BEAT = 2500 -- a waiter that has become the first in the queue asks again within this time, ms

-- Extends the lease of a holder, and shortens it only where it is to be `exact`. Returns how long it
-- is now.
local function extend_lease(token, value, ttl, exact)
  local left
  if value == token then
    left = redis.call('PTTL', lock)
    if left < ttl or exact then
      redis.call('PEXPIRE', lock, ttl)
      left = ttl
    end
    redis.call('PEXPIRE', meta, int_text(left + RETENTION))
  else
    left = tonumber(redis.call('ZSCORE', holders, token)) - now_ms
    redis.call('PEXPIRE', holders, int_text(math.max(redis.call('PTTL', holders), left + RETENTION, ttl + RETENTION)))
    if left < ttl or exact then
      redis.call('ZADD', holders, int_text(now_ms + ttl), token)
      left = ttl
    end
    if redis.call('PTTL', lock) < ttl then
      redis.call('PEXPIRE', lock, int_text(ttl + ttl / 3))
    end
    if value == 'redlock:slots' then extend_expiry(slots, left + RETENTION) end
    extend_expiry(meta, left + RETENTION)
  end
  -- Keys that last for many days are refreshed once a day.
  if redis.call('PTTL', state) < 2 * RETENTION - DAY then
    touch_memory()
    index_name()
  end
  return left
end

-- The number in an outside order (--order) in an entry, if any, and its run.
local function order_of(entry)
  return string.match(entry, '"order":(%d+)'), string.match(entry, '({.*)$')
end

-- Notes the number of this hold, which has the lock.
local function note_order(entry)
  local number, who = order_of(entry)
  if number and tonumber(number) > tonumber(redis.call('HGET', state, 'number') or -1) then
    set_state('number', number, 'number_by', who)
  end
end

-- The token has shown that it knows of its grant. Returns its entry.
local function confirm(token, value, ttl)
  local entry = redis.call('HGET', meta, token) or ''
  local start, phase = string.match(entry, PHASE)
  if phase ~= 'granted' then return entry end
  entry = start .. ' held ' .. string.match(entry, '({.*)$')
  redis.call('HSET', meta, token, entry)
  note_order(entry)
  if SHARED_VALUES[value] then
    grant_next(value, nil, 0)
  elseif ttl < FIRST_BEAT then
    -- It may end before the next waiter asks again.
    notify_next(1)
  end
  return entry
end
