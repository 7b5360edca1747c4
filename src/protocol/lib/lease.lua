-- Extending leases, and confirming grants.
-- @include held
-- @include queue
-- @include names

-- Returns how long a lease lasts after its holder has asked for `ttl`; `left` is left of it. A lease is never
-- shortened, unless it is longer than any requested lease because the server's clock was set back.
local function lasting(token, left, ttl)
  if left <= ttl then return ttl end
  local entry = redis.call('HGET', meta, token) or ''
  local phase = read_hold(entry).phase
  -- A grant may last longer than the shortest lease, but its run counts on no more than its TTL.
  if phase == 'granted' then return ttl end
  local asked = (phase == 'held' or phase == 'guarded') and ttl_of(entry)
  return asked and credible(left, math.max(ttl, asked), entry) or left
end

-- Extends the lease of a holder. Returns its new length.
local function extend_lease(token, value, ttl)
  local left
  if value == token then
    left = redis.call('PTTL', lock)
    local lasts = lasting(token, left, ttl)
    if left ~= lasts then
      redis.call('PEXPIRE', lock, int_text(lasts))
      left = lasts
    end
    redis.call('PEXPIRE', meta, int_text(left + RETENTION))
  else
    left = tonumber(redis.call('ZSCORE', holders, token)) - now_ms
    redis.call('PEXPIRE', holders, int_text(math.max(redis.call('PTTL', holders), left + RETENTION, ttl + RETENTION)))
    local lasts = lasting(token, left, ttl)
    if left ~= lasts then
      redis.call('ZADD', holders, int_text(now_ms + lasts), token)
      left = lasts
    end
    if redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, int_text(ttl + ttl / 3)) end
    if value == 'redlock:slots' then extend_expiry(slots, left + RETENTION) end
    extend_expiry(meta, left + RETENTION)
  end
  -- Keys that last for many days are refreshed once a day.
  if redis.call('PTTL', state) < 2 * RETENTION - REFRESHED then
    touch_memory()
    index_name()
  end
  -- Lasts as long as the lease, because no renewal may come within a day.
  if left > DAY then index_name(left) end
  return left
end

-- Returns the number in an outside order (--seq) in an entry, if any, and its run.
local function order_of(entry)
  return string.match(entry, '"order":(%d+)'), string.match(entry, '({.*)$')
end

-- Records the number of this hold, which has the lock.
local function note_order(entry)
  local number, who = order_of(entry)
  if number and tonumber(number) > tonumber(redis.call('HGET', state, 'number') or -1) then
    set_state('number', number, 'number_by', who)
  end
end

-- Confirms a grant, because the token shows that its run knows of it. With `sync`, the replicas aren't known to have
-- it yet. Returns its entry.
local function confirm(token, value, ttl, sync)
  local entry = redis.call('HGET', meta, token) or ''
  local hold = read_hold(entry)
  local is_replicating = not sync and hold.phase == 'held' and hold.mark == ':'
  if hold.phase ~= 'granted' and not is_replicating then return entry end
  entry = hold.start .. (sync and ' held: ' or ' held ') .. hold.who
  redis.call('HSET', meta, token, entry)
  note_order(entry)
  if SHARED_VALUES[value] then grant_next(value) end
  notify_next(ttl)
  return entry
end
